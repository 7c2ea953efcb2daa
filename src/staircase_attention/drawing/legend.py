"""The legend and the notes under a figure: a line for each thing that a reader meets in it."""

import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from matplotlib.figure import Figure

from staircase_attention.drawing import shapes
from staircase_attention.drawing.picture import KINDS, Box, Kind, Picture
from staircase_attention.drawing.shapes import INSET, Area
from staircase_attention.drawing.words import LEAVES, OUTLINE, meaning

LINE_HEIGHT = 0.27
"""From one line to the next."""
SAMPLE_WIDTH, SAMPLE_HEIGHT = 0.34, 0.2
"""Size of the boxes that are explained."""
GAP = 0.1
"""Above the legend, and between samples and words."""

Draw = Callable[[Figure, Area], None]
"""Draws a sample in the place it is given."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Legend:
    """What the boxes, the arrow and the outline mean, and then the notes."""

    entries: tuple[tuple[tuple[Draw, ...], str], ...]
    """Samples side by side, and what they mean."""
    notes: tuple[str, ...]
    """The notes, in lines that fit."""

    @classmethod
    def of(cls, picture: Picture, *, width: float) -> "Legend":
        """Explain what is in the picture, and nothing else."""
        letters = int(width / shapes.text_width("x", shapes.SMALL))
        kinds = [_entry(picture, kind) for kind in KINDS]
        entries = (*filter(None, kinds), ((_arrow,), LEAVES), ((_outline,), OUTLINE))
        return cls(entries=entries, notes=tuple(textwrap.wrap(" ".join(picture.notes), letters)))

    @property
    def height(self) -> float:
        """All lines together."""
        return (len(self.entries) + len(self.notes)) * LINE_HEIGHT + GAP

    def draw(self, figure: Figure, *, left: float, bottom: float) -> None:
        """Draw it, from top to bottom; what is explained stands right beside the words."""
        middle = bottom + self.height - GAP - LINE_HEIGHT / 2
        num_places = max(len(samples) for samples, _ in self.entries)
        words_left = left + num_places * SAMPLE_WIDTH + GAP
        for samples, words in self.entries:
            for place, sample in enumerate(reversed(samples), start=1):
                sample_left = words_left - GAP - place * SAMPLE_WIDTH
                corner = (sample_left, middle - SAMPLE_HEIGHT / 2)
                sample(figure, Area(*corner, SAMPLE_WIDTH, SAMPLE_HEIGHT))
            shapes.write(figure, words_left, middle, words, size=shapes.SMALL)
            middle -= LINE_HEIGHT
        for note in self.notes:
            shapes.write(figure, left, middle, note, size=shapes.SMALL, colour=shapes.GREY)
            middle -= LINE_HEIGHT


def _entry(picture: Picture, kind: Kind) -> tuple[tuple[Draw, ...], str] | None:
    """A kind of box on the first pass it is seen on, one in the middle, and the last."""
    passes = sorted({box.pass_number for box in picture.boxes if box.kind == kind})
    if not passes:
        return None
    shown = dict.fromkeys((passes[0], passes[len(passes) // 2], passes[-1]))
    samples = (Box(kind=kind, columns=range(1), pass_number=number) for number in shown)
    draw = partial(_box, num_passes=picture.num_passes)
    return tuple(partial(draw, sample) for sample in samples), meaning(kind, passes[-1])


def _box(sample: Box, figure: Figure, area: Area, *, num_passes: int) -> None:
    shapes.box(figure, sample, area, num_passes=num_passes)


def _arrow(figure: Figure, area: Area) -> None:
    shapes.arrow(figure, area.centre[0], area.bottom, area.top + 0.02)


def _outline(figure: Figure, area: Area) -> None:
    shapes.outline(figure, area._replace(left=area.left + INSET, width=area.width - 2 * INSET))
