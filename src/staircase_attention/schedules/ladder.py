"""Schedules that stand still in time: the Ladder, and what one pass or one layer makes of it."""

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

from staircase_attention.schedules.checks import require_choice, require_integer
from staircase_attention.schedules.schedule import PaperRow, Schedule
from staircase_attention.schedules.timetable import Cell, Order, Step, pieces

LayerOrder = Literal["ABAB", "AABB"]
"""Repeat the whole core, or each layer in turn."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rungs:
    """Tokens that go up side by side, each seeing the latest S positions of its own rung."""

    num_passes: int
    """N"""
    span: int
    """S"""
    layer_order: LayerOrder

    def steps(self, tokens: range, *, num_layers: int, order: Order) -> Iterator[Step]:
        """All tokens at once, pass by pass; or in chunk order each token through all passes."""
        whole = [(0, tokens)] if len(tokens) else []
        runs = whole if order == "window" else list(pieces(tokens, 1))
        for chunk, run in runs:
            yield from self._climb(chunk, run, num_layers)

    def _climb(self, chunk: int, tokens: range, num_layers: int) -> Iterator[Step]:
        """All rungs for some tokens.

        Each (pass, layer) has a bank of its own, which carries the latest S-1 positions on to the
        tokens that come next: the segment memory of Transformer-XL.
        """
        whole = range(num_layers)
        each = [range(layer, layer + 1) for layer in whole]
        for part, layers in enumerate([whole] if self.layer_order == "ABAB" else each):
            for pass_number in range(1, self.num_passes + 1):
                yield Step(
                    index=part * self.num_passes + pass_number - 1,
                    bank=pass_number,
                    layers=layers,
                    cells=(Cell(chunk=chunk, pass_number=pass_number, tokens=tokens),),
                    retained=self.span - 1,
                )


class RungSchedule(Schedule):
    """A schedule that climbs a ladder: all it has to say is which."""

    __slots__ = ()

    @property
    @abstractmethod
    def rungs(self) -> Rungs:
        """N, S and the order of this schedule."""

    def steps(self, tokens: range, *, num_layers: int, order: Order) -> Iterator[Step]:
        """The steps by which `tokens` get their outputs."""
        return self.rungs.steps(tokens, num_layers=num_layers, order=order)

    @property
    def default_max_distance(self) -> int:
        """The whole span."""
        return self.rungs.span

    @property
    def paper_row(self) -> PaperRow:
        """N recurrent steps; the tables print no sizes for a ladder."""
        return PaperRow(recurrent_steps=self.rungs.num_passes, step_size=None, forward_size=None)

    @property
    def attention_span(self) -> int | None:
        """S."""
        return self.rungs.span


@dataclass(frozen=True, kw_only=True, slots=True)
class Ladder(RungSchedule):
    """The whole core applied N times over; recurrent in depth, not in time."""

    name: ClassVar[str] = "ladder"

    num_passes: int
    """N: how often the core, or each layer of it, is applied."""
    span: int
    """S: latest positions that a token sees, itself included."""
    order: LayerOrder = "ABAB"
    """ABAB repeats the core, AABB repeats each layer before the next one's turn."""

    def __post_init__(self) -> None:
        require_integer(self, "num_passes", at_least=1, remedy="give the passes, as 4")
        require_integer(self, "span", at_least=1, remedy="give the positions in sight, as 256")
        require_choice(self, "order", ("ABAB", "AABB"))

    @property
    def rungs(self) -> Rungs:
        """As asked."""
        return Rungs(num_passes=self.num_passes, span=self.span, layer_order=self.order)


@dataclass(frozen=True, kw_only=True, slots=True)
class TransformerXL(RungSchedule):
    """The baseline of the paper: a Ladder with one pass."""

    name: ClassVar[str] = "transformer-xl"

    span: int
    """S: latest positions that a token sees, itself included."""

    def __post_init__(self) -> None:
        require_integer(self, "span", at_least=1, remedy="give the positions in sight, as 256")

    @property
    def rungs(self) -> Rungs:
        """One rung."""
        return Rungs(num_passes=1, span=self.span, layer_order="ABAB")

    @property
    def paper_row(self) -> PaperRow:
        """Nothing recurs: most of the tables print dashes."""
        return PaperRow(recurrent_steps=None, step_size=None, forward_size=None)


@dataclass(frozen=True, kw_only=True, slots=True)
class UniversalTransformer(RungSchedule):
    """Dehghani et al. 2018 as the paper places it: a Ladder over a core of a single layer."""

    name: ClassVar[str] = "universal-transformer"

    num_passes: int
    """N: how often the layer is applied."""
    span: int
    """S: latest positions that a token sees, itself included."""

    def __post_init__(self) -> None:
        require_integer(self, "num_passes", at_least=1, remedy="give the passes, as 4")
        require_integer(self, "span", at_least=1, remedy="give the positions in sight, as 256")

    @property
    def rungs(self) -> Rungs:
        """As asked; with one layer both orders are the same."""
        return Rungs(num_passes=self.num_passes, span=self.span, layer_order="ABAB")

    def check_core(self, *, num_layers: int) -> None:
        """Refuse a core of more than one layer."""
        if num_layers != 1:
            raise ValueError(
                f"UniversalTransformer needs a core with num_layers = 1, got {num_layers}; "
                "set num_layers to 1, or use Ladder for a deeper core"
            )
