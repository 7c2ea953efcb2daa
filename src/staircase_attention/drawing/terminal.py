"""A picture in a terminal. Numbers and glyphs carry the meaning; colour only helps."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from staircase_attention.checks import input_error
from staircase_attention.drawing.picture import (
    KINDS,
    LEAVES,
    OUTLINE,
    Box,
    Kind,
    Picture,
    Row,
    meaning,
    name,
    output_names,
    pass_colours,
)

# Characters from one column to the next, where there is room.
WIDEST_PITCH = 6
# What a box is filled with, around its number.
FILLS: dict[Kind, str] = {"query": " ", "cached": "░", "kept": "·"}
# Marks a box that leaves with its output.
ARROW = "↑"


@dataclass(frozen=True, slots=True)
class TerminalPicture:
    """A picture for a rich console, as wide as the console allows when it is printed."""

    picture: Picture

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Lay the picture out for this console."""
        yield Text(self.picture.title, style="bold")
        yield from _grid(self.picture, options.max_width)
        yield Text(self.picture.caption)
        yield from _packed(_legend(self.picture), options.max_width)
        notes = (Text(note, style="dim") for note in self.picture.notes)
        yield from _packed(notes, options.max_width)


def _grid(picture: Picture, width: int) -> Iterator[Text]:
    """The rows from top to bottom, and what is below them."""
    num_columns, margin = len(picture.columns), max(len(row.label) for row in picture.rows) + 1
    # The outputs that leave a row, written to its right.
    outputs = dict.fromkeys(picture.rows, "")
    for row in picture.rows:
        if leaving := [output_names(box) for box in row.boxes if box.leaves]:
            outputs[row] = f" {ARROW} {', '.join(leaving)}"
    needed = margin + max(map(len, outputs.values())) + 1
    # Characters from one column to the next.
    pitch = min(WIDEST_PITCH, (width - needed) // num_columns)
    # A number, an arrow, and a space or border.
    narrowest = len(str(picture.num_passes)) + len(ARROW) + 1
    if pitch < narrowest:
        raise input_error(
            f"this picture needs a terminal at least {needed + narrowest * num_columns} characters "
            "wide",
            width,
            "widen it, draw fewer tokens, or save the picture as SVG",
        )

    def line(label: str, body: Text, outputs: str = "") -> Text:
        text = Text(no_wrap=True, overflow="crop")
        text.append(f"{label:<{margin}}", style="dim").append_text(body).append(outputs).rstrip()
        return text

    for row in reversed(picture.rows):
        yield line(row.label, _row(row, pitch, picture), outputs[row])
    # Names may be wider than columns: then only every second or third column has one.
    every = -(-(len(name("x", num_columns)) + 1) // pitch)
    names = [name("x", column + 1) for column in range(0, num_columns, every)]
    centred_names = (centred(one, pitch - 1).ljust(every * pitch) for one in names)
    yield line("", Text(f" {''.join(centred_names)}".rstrip()))


def _row(row: Row, pitch: int, picture: Picture) -> Text:
    first = row.outline.start
    line = Text(" " * (first * pitch))
    for box in row.boxes:
        # Columns between two boxes that the step does not see stay empty.
        line.pad_right(box.columns.start * pitch - len(line))
        line.append("│" if box.columns.start == first else " ", style="dim")
        width = len(box.columns) * pitch - 1
        line.append_text(tile(box, width=width, num_passes=picture.num_passes))
    line.append("│", style="dim")
    line.pad_right(len(picture.columns) * pitch + 1 - len(line))
    return line


def tile(box: Box, *, width: int, num_passes: int) -> Text:
    """A box on one line: its number in a fill that shows its kind, and an arrow if it leaves."""
    number = str(box.pass_number)
    text = Text(centred(number, width, fill=FILLS[box.kind], room=box.leaves))
    if box.leaves:
        place = text.plain.index(number) + len(number)
        text.plain = f"{text.plain[:place]}{ARROW}{text.plain[place + 1 :]}"
    if box.kind == "query":
        fill, ink = pass_colours(box.pass_number, num_passes)
        text.stylize(f"bold {ink} on {fill}")
    return text


def centred(text: str, width: int, *, fill: str = " ", room: bool = False) -> str:
    """The text in the middle, or left of it where that leaves room for a mark on its right.

    >>> centred("3", 5, fill="░"), centred("3", 2, room=True), centred("10", 3, fill="·")
    ('░░3░░', '3 ', '10·')
    """
    before = (width - len(text)) // 2
    if room:
        before = min(before, width - len(text) - 1)
    return (fill * before + text).ljust(width, fill)


def _legend(picture: Picture) -> Iterator[Text]:
    """A sample of each kind of box in the picture, and what it means."""
    for kind in KINDS:
        sample = next((box for box in picture.boxes if box.kind == kind), None)
        if sample is not None:
            plain = Box(kind=kind, columns=sample.columns, pass_number=sample.pass_number)
            width = len(str(plain.pass_number)) + 2
            shown = tile(plain, width=width, num_passes=picture.num_passes)
            yield Text.assemble(shown, " ", meaning(kind, plain.pass_number))
    yield Text(f"{ARROW} {LEAVES}")
    yield Text.assemble(("│ │", "dim"), f" {OUTLINE}")


def _packed(items: Iterable[Text], width: int) -> Iterator[Text]:
    """As many items per line as fit."""
    line = Text()
    for item in items:
        if line and len(line) + 3 + len(item) > width:
            yield line
            line = Text()
        line.append_text(Text("   ") if line else Text()).append_text(item)
    yield line
