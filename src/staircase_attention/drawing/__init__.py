"""The paper's Figure 1 for any timetable: as plain data, in the terminal, as SVG or PNG."""

from staircase_attention.drawing.picture import Box, Picture, Row, picture
from staircase_attention.drawing.plot import save_picture
from staircase_attention.drawing.terminal import render_terminal

__all__ = ["Box", "Picture", "Row", "picture", "render_terminal", "save_picture"]
