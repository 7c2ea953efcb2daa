"""What every schedule of the family offers, whatever its timetable."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from staircase_attention.schedules.timetable import Order, Step


@dataclass(frozen=True, kw_only=True, slots=True)
class PaperRow:
    """The words in which the paper's tables describe a model; None where it has no such number."""

    recurrent_steps: int | None
    """Passes a token makes through the core before others see the result."""
    step_size: int | None
    """Tokens visible at once."""
    forward_size: int | None
    """New tokens a step."""


class Schedule(ABC):
    """A model of the family, as plain data: what is computed when, and what each step can see.

    A new member of the family subclasses this, says how it walks its grid in `steps`, and overrides
    those of the facts below in which it differs.
    """

    __slots__ = ()

    name: ClassVar[str]
    """What the command line and saved files call this schedule."""

    @abstractmethod
    def steps(self, tokens: range, *, num_layers: int, order: Order) -> Iterator[Step]:
        """The steps by which `tokens`, at these positions of the stream, get their outputs."""

    @property
    @abstractmethod
    def default_max_distance(self) -> int:
        """Rows of the relative-position table, where the core's config leaves them open."""

    @property
    @abstractmethod
    def paper_row(self) -> PaperRow:
        """How the paper's tables describe this model."""

    @property
    def chunk_length(self) -> int:
        """C: the stream is cut into chunks of this many tokens."""
        return 1

    @property
    def attention_span(self) -> int | None:
        """S: how many of the latest keys a query sees; None: all that its step offers."""
        return None

    @property
    def is_state_bounded(self) -> bool:
        """Whether what a stream must remember stops growing."""
        return True

    @property
    def attends_self(self) -> bool:
        """Whether a token is among the keys of its own query."""
        return True

    @property
    def mixes_layers(self) -> bool:
        """Whether a cached token is a learned mixture of its embedding and all layers' outputs."""
        return False

    @property
    def shares_keys_values(self) -> bool:
        """Whether one pair of projections gives the cached keys and values of all layers."""
        return False

    def check_core(self, *, num_layers: int) -> None:
        """Refuse a core that this schedule cannot drive; most can drive any."""
        assert num_layers > 0

    def to_dict(self) -> dict[str, Any]:
        """The schedule as plain data, for configs and saved files."""
        return {"name": self.name, **asdict(self)}  # type: ignore[call-overload]
