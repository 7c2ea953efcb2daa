"""Stairs of single tokens: Feedback Transformers and memory networks."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from staircase_attention.schedules.checks import require_choice, require_flag, require_integer
from staircase_attention.schedules.schedule import PaperRow
from staircase_attention.schedules.stairs import Stairs, StairSchedule


@dataclass(frozen=True, kw_only=True, slots=True)
class FeedbackTransformer(StairSchedule):
    """Fan et al. 2020: one token at a time, every layer attending to one memory a token.

    With `memory="top"`, `attend_self` and separate keys and values it is the Cached Staircase with
    C = 1, N = S + 1 and M = 1. Where there is nothing to attend to, attention gives zero.
    """

    name: ClassVar[str] = "feedback-transformer"

    span: int
    """S: how many earlier tokens are in sight."""
    share_keys_values: bool = True
    """One norm and one pair of projections turn memories into keys and values for all layers."""
    memory: Literal["mix", "top"] = "mix"
    """A learned mixture of the embedding and all layers' outputs, or the last layer's output."""
    attend_self: bool = False
    """Whether a token also attends to itself, as it stands at each layer."""

    def __post_init__(self) -> None:
        require_integer(self, "span", at_least=1, remedy="give the tokens in sight, as 256")
        require_flag(self, "share_keys_values")
        require_choice(self, "memory", ("mix", "top"))
        require_flag(self, "attend_self")

    @property
    def stairs(self) -> Stairs:
        """One new token, and S that have passed once."""
        return Stairs(chunk_size=1, num_window_chunks=self.span + 1, num_passes=1)

    @property
    def paper_row(self) -> PaperRow:
        """One recurrent step; the tables give the span as step size."""
        return PaperRow(recurrent_steps=1, step_size=self.span, forward_size=1)

    @property
    def attends_self(self) -> bool:
        """As asked."""
        return self.attend_self

    @property
    def mixes_layers(self) -> bool:
        """Whether memories are mixtures."""
        return self.memory == "mix"

    @property
    def shares_keys_values(self) -> bool:
        """As asked."""
        return self.share_keys_values


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryNetwork(StairSchedule):
    """End-to-end memory networks as the paper places them: earlier tokens are embeddings only.

    The Global Cached Staircase with C = 1 and M = 0, over the S latest positions.
    """

    name: ClassVar[str] = "memory-network"

    span: int
    """S: latest positions that a token sees, itself included."""

    def __post_init__(self) -> None:
        require_integer(self, "span", at_least=1, remedy="give the positions in sight, as 256")

    @property
    def stairs(self) -> Stairs:
        """One new token, and S-1 as they came in."""
        return Stairs(chunk_size=1, num_window_chunks=self.span, num_passes=0)
