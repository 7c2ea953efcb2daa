"""Models that are recurrent in depth only: the Ladder, and its cases of one pass or one layer."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from staircase_attention.checks import input_error
from staircase_attention.schedules.schedule import PaperRow, Schedule, runs
from staircase_attention.schedules.timetable import Cell, Order, Step


@dataclass(frozen=True, kw_only=True, slots=True)
class RungSchedule(Schedule):
    """Tokens that go up side by side, each seeing the latest positions at its own height."""

    lags: ClassVar[bool] = False
    """Whether passes after the first enter with what the token before left."""
    span: int
    """S: latest positions that a token sees."""
    span_includes_self: bool = field(default=True, metadata={"is_new": True})
    """Whether S counts the token itself; the authors' public code does not."""

    def steps(self, tokens: range, *, num_layers: int, order: Order) -> Iterator[Step]:
        """A run of tokens pass by pass, then the next; in chunk order every token is a run.

        Each (pass, layer) has a bank of its own, which holds the latest positions for the tokens
        that come next: the segment memory of Transformer-XL.
        """
        # N, and the order of the layers, if a schedule has these options.
        num_passes, layer_order = getattr(self, "num_passes", 1), getattr(self, "order", "ABAB")
        each = [range(layer, layer + 1) for layer in range(num_layers)]
        parts = [range(num_layers)] if layer_order == "ABAB" else each
        each_token = (range(token, token + 1) for token in tokens)
        for run in runs(tokens, self.attention_span) if order == "window" else each_token:
            for part, layers in enumerate(parts):
                for pass_number in range(1, num_passes + 1):
                    yield Step(
                        index=part * num_passes + pass_number - 1,
                        bank=pass_number,
                        layers=layers,
                        cells=(Cell(chunk=run.start, pass_number=pass_number, tokens=run),),
                        retained=self.attention_span - 1,
                        lags=self.lags and pass_number > 1,
                    )

    @property
    def attention_span(self) -> int:
        """S, or S + 1 where S counts the earlier tokens only."""
        return self.span if self.span_includes_self else self.span + 1

    @property
    def default_max_distance(self) -> int:
        """All distances that a query sees."""
        return self.attention_span

    @property
    def paper_row(self) -> PaperRow:
        """N recurrent steps, or a dash where nothing recurs; no sizes for a ladder."""
        num_passes = getattr(self, "num_passes", None)
        return PaperRow(recurrent_steps=num_passes, step_size=None, forward_size=None)


@dataclass(frozen=True, kw_only=True, slots=True)
class Ladder(RungSchedule):
    """The whole core applied N times over; recurrent in depth, not in time."""

    name: ClassVar[str] = "ladder"

    num_passes: int
    """N: how often the core, or each layer of it, is applied."""
    order: Literal["ABAB", "AABB"] = "ABAB"
    """ABAB repeats the core, AABB repeats each layer before the next one's turn."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TransformerXL(RungSchedule):
    """The baseline of the paper: a Ladder with one pass."""

    name: ClassVar[str] = "transformer-xl"


@dataclass(frozen=True, kw_only=True, slots=True)
class UniversalTransformer(RungSchedule):
    """Dehghani et al. 2018 as the paper places it: a Ladder over a core of a single layer."""

    name: ClassVar[str] = "universal-transformer"

    num_passes: int
    """N: how often the layer is applied; with one layer both orders are the same."""

    def check_core(self, *, num_layers: int) -> None:
        """Refuse a core of more than one layer."""
        if num_layers != 1:
            rule = "UniversalTransformer needs a core with num_layers = 1"
            remedy = "set num_layers to 1, or use Ladder for a deeper core"
            raise input_error(rule, num_layers, remedy)


@dataclass(frozen=True, kw_only=True, slots=True)
class ParallelLoop(RungSchedule):
    """A Ladder whose pass n begins one token back, so that a token's passes wait for no other.

    With e_t what entered the recurrence, and h_t^n token t after pass n (0 before the stream):
    pass 1 takes in e_t, pass n takes in h_{t-1}^{n-1} + e_t (or the core's gate of both) and sees
    the S latest positions at pass n. In decoding all passes of a token are one batch of N queries,
    after the token before it:

        token        0        1        2
        pass 1       e_0      e_1      e_2
        pass 2       e_0      e_1+h_0^1  e_2+h_1^1
        pass 3       e_0      e_1+h_0^2  e_2+h_1^2

    In training each pass takes all tokens at once, one pass after another. A Staircase with C = 1
    is not this: its pass n + 1 waits for pass n of the same token. (Wu et al. 2025.)
    """

    name: ClassVar[str] = "parallel-loop"
    lags: ClassVar[bool] = True

    num_passes: int
    """N: how often the core is applied, whole: a lag needs whole passes."""
