"""A picture in a terminal. Numbers and glyphs carry the meaning; colour only helps."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
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


def render_terminal(picture: Picture) -> RenderableType:
    """The picture for a rich console, as wide as the console allows."""
    return TerminalPicture(picture)


@dataclass(frozen=True, slots=True)
class TerminalPicture:
    """A picture that lays itself out when it is printed."""

    picture: Picture

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Lay the picture out for this console."""
        yield Text(self.picture.title, style="bold")
        yield from Grid.fit(self.picture, options.max_width).lines()
        yield Text(self.picture.caption)
        yield from _packed(_legend(self.picture), options.max_width)
        notes = (Text(note, style="dim") for note in self.picture.notes)
        yield from _packed(notes, options.max_width)


@dataclass(frozen=True, kw_only=True, slots=True)
class Grid:
    """Rows and columns of a picture, laid out in characters."""

    picture: Picture
    margin: int
    """Characters to the left of the first column."""
    pitch: int
    """Characters from one column to the next."""

    @classmethod
    def fit(cls, picture: Picture, width: int) -> "Grid":
        """Columns as wide as there is room for, up to the widest pitch."""
        margin = max(len(row.label) for row in picture.rows) + 1
        outputs = max(len(_outputs(row)) for row in picture.rows)
        pitch = min(WIDEST_PITCH, (width - margin - outputs - 1) // len(picture.columns))
        # A number, an arrow, and a space or border.
        narrowest = len(str(picture.num_passes)) + len(ARROW) + 1
        if pitch < narrowest:
            needed = margin + outputs + 1 + narrowest * len(picture.columns)
            raise input_error(
                f"this picture needs a terminal at least {needed} characters wide",
                width,
                "widen it, draw fewer tokens, or save the picture as SVG",
            )
        return cls(picture=picture, margin=margin, pitch=pitch)

    def lines(self) -> Iterator[Text]:
        """The picture from top to bottom."""
        for row in reversed(self.picture.rows):
            yield self._row(row)
        yield self._inputs()
        if self.picture.sight is not None:
            yield self._sight(self.picture.sight)

    def _row(self, row: Row) -> Text:
        first = row.outline.start
        line = Text(" " * (first * self.pitch))
        for box in row.boxes:
            # Columns between two boxes that the step does not see stay empty.
            line.pad_right(box.columns.start * self.pitch - len(line))
            line.append("│" if box.columns.start == first else " ", style="dim")
            width = len(box.columns) * self.pitch - 1
            line.append_text(tile(box, width=width, num_passes=self.picture.num_passes))
        line.append("│", style="dim")
        line.pad_right(len(self.picture.columns) * self.pitch + 1 - len(line))
        return self._line(row.label, line, _outputs(row))

    def _inputs(self) -> Text:
        """The names of the columns, or of as many as there is room for."""
        num_columns = len(self.picture.columns)
        longest = len(name("x", num_columns))
        # Names may be wider than columns: then only every second or third column has one.
        every = -(-(longest + 1) // self.pitch)
        width = every * self.pitch
        labels = [name("x", column + 1) for column in range(0, num_columns, every)]
        line = "".join(centred(label, self.pitch - 1).ljust(width) for label in labels)
        return self._line("", Text(f" {line}".rstrip()))

    def _sight(self, sight: range) -> Text:
        """A bracket under the columns that the last token sees."""
        width = len(sight) * self.pitch - 1
        words = f" seen by {name('x', sight.stop)} "
        # A bracket too narrow for words stays a line.
        inner = words if len(words) <= width - 2 else ""
        bracket = " " * (sight.start * self.pitch + 1) + f"╰{inner:─^{width - 2}}╯"
        return self._line("", Text(bracket, style="dim"))

    def _line(self, label: str, body: Text, outputs: str = "") -> Text:
        text = Text(no_wrap=True, overflow="crop")
        text.append(f"{label:<{self.margin}}", style="dim")
        text.append_text(body)
        text.append(outputs)
        text.rstrip()
        return text


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


def _outputs(row: Row) -> str:
    """The outputs that leave a row, written to its right."""
    leaving = ", ".join(output_names(box) for box in row.leaving)
    return f" {ARROW} {leaving}" if leaving else ""


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
