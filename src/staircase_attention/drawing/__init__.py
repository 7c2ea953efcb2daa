"""The paper's Figure 1 for any timetable: as plain data, in the terminal, as SVG or PNG."""

import os

from staircase_attention.drawing.picture import Box, Picture, Row, picture
from staircase_attention.drawing.terminal import render_terminal

__all__ = ["Box", "Picture", "Row", "picture", "render_terminal", "save_picture"]


def save_picture(drawn: Picture, path: str | os.PathLike[str]) -> None:
    """Write a picture to a file that ends in .svg or .png, whole or not at all."""
    # Imported late: matplotlib takes a second.
    from staircase_attention.drawing.figure import save

    save(drawn, path)
