"""The paper's Figure 1 for any timetable: as plain data, in the terminal, as SVG or PNG."""

from typing import TYPE_CHECKING

from staircase_attention.drawing.picture import Box, Picture, Row, picture
from staircase_attention.drawing.terminal import render_terminal
from staircase_attention.lazy import lazy_names

if TYPE_CHECKING:
    from staircase_attention.drawing.figure import save_picture

__all__ = ["Box", "Picture", "Row", "picture", "render_terminal", "save_picture"]
# matplotlib takes a second to import.
__getattr__ = lazy_names(__name__, {"figure": ["save_picture"]})
