"""What every schedule of the family offers, and how one is found by its name."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Self

from staircase_attention.checks import check_choice, check_fields, input_error
from staircase_attention.references import check_options, load_reference, reference_of
from staircase_attention.schedules.timetable import Cell, Depth, Order, Step

# Tokens that go up together, unless they see farther. More would mostly hide from one another.
LONGEST_RUN = 512
# The bank of the steps outside of the recurrence, whose layers no other step has.
OUTSIDE = -1


@dataclass(frozen=True, kw_only=True, slots=True)
class PaperRow:
    """The numbers by which the paper's tables describe a model; None where they print a dash."""

    recurrent_steps: int | None
    """Passes of a token through the core before others see the result."""
    step_size: int | None
    """Tokens visible at once."""
    forward_size: int | None
    """New tokens per step."""


class Schedule(ABC):
    """A model of the family, as plain data: what is computed when, and what each step can see.

    A new member of the family is a dataclass that subclasses this, defines its timetable in
    `steps`, and overrides those of the facts below in which it differs. Its fields are the options
    of the model. Integers are checked to be at least 1, or what `metadata={"minimum": 0}` says.
    """

    __slots__ = ()

    name: ClassVar[str]
    """What the command line and saved files call this schedule."""

    def __post_init__(self) -> None:
        check_fields(self)

    @abstractmethod
    def steps(self, tokens: range, *, num_layers: int, order: Order) -> Iterator[Step]:
        """The steps by which `tokens`, at these positions of the stream, get their outputs."""

    def phases(
        self, tokens: range, *, depth: Depth, order: Order, span: int | None = None
    ) -> Iterator[Iterator[Step]]:
        """The steps of the prelude, of the recurrence and of the coda, for the same tokens.

        Layers outside of the recurrence see the latest positions, `span` or as many as the
        recurrence can reach: the segment memory of Transformer-XL.
        """
        num_layers, num_before, num_after = depth
        span = span or self.default_max_distance
        if num_before:
            yield self._outside(tokens, range(num_layers, num_layers + num_before), span)
        yield self.steps(tokens, num_layers=num_layers, order=order)
        if num_after:
            yield self._outside(tokens, range(num_layers + num_before, sum(depth)), span)

    def _outside(self, tokens: range, layers: range, span: int) -> Iterator[Step]:
        for run in runs(tokens, span):
            yield Step(
                index=0,
                bank=OUTSIDE,
                layers=layers,
                cells=(Cell(chunk=run.start, pass_number=1, tokens=run),),
                retained=span - 1,
                kept=(range(tokens.stop),),
                span=span,
            )

    @property
    @abstractmethod
    def default_max_distance(self) -> int:
        """Rows of the relative-position table, unless the core's config has another number."""

    @property
    @abstractmethod
    def paper_row(self) -> PaperRow:
        """How the paper's tables describe this model."""

    @property
    def chunk_length(self) -> int:
        """C: the stream is cut into chunks of this many tokens."""
        return 1

    @property
    def period(self) -> int:
        """Tokens after which the timetable repeats itself; rows may restart at its multiples.

        A schedule that does not treat all chunks alike has a longer one than its chunks.
        """
        return self.chunk_length

    @property
    def attention_span(self) -> int | None:
        """S: how many of the latest positions a query sees; None: all that its step offers."""
        return None

    @property
    def is_state_bounded(self) -> bool:
        """Whether the state of a stream stops growing."""
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

    def with_passes(self, num_passes: int) -> Self:
        """The same schedule with another number of passes, if it has one."""
        if "num_passes" not in {option.name for option in fields(self)}:  # type: ignore[arg-type]
            rule = "another number of passes is for schedules with num_passes"
            raise input_error(rule, repr(self), "leave it out, or use for example a Ladder")
        return replace(self, num_passes=num_passes)  # type: ignore[type-var]

    def to_dict(self) -> dict[str, Any]:
        """The schedule as plain data, for configs and saved files.

        A schedule of the family is named, any other one is referred to by its file or module.
        """
        is_known = SCHEDULES.get(getattr(self, "name", "")) is type(self)
        key, value = ("name", self.name) if is_known else ("reference", reference_of(type(self)))
        options = {
            option.name: _nested(list, getattr(self, option.name))
            for option in fields(self)  # type: ignore[arg-type]
            # States and runs that are older than an option do not have it.
            if not option.metadata.get("is_new") or getattr(self, option.name) != option.default
        }
        return {key: value, **options}


def check_steps(schedule: Schedule, num_layers: int) -> None:
    """Refuse a schedule that leaves out a pass of a token, or repeats one."""
    tokens = range(2 * schedule.period + 1)
    passes: dict[int, list[int]] = {token: [] for token in tokens}
    for step in schedule.steps(tokens, num_layers=num_layers, order="window"):
        for cell in step.cells:
            for token in cell.tokens:
                # Each layer of a pass may be a step of its own.
                passes.setdefault(token, []).extend([cell.pass_number] * len(step.layers))
    for token, made in passes.items():
        due = sorted([*range(1, max(made, default=1) + 1)] * num_layers)
        if token not in tokens or sorted(made) != due:
            rule = f"steps of {type(schedule).__name__} must take each token through all its passes"
            received = f"token {token} in passes {sorted(made) or 'none'} of {num_layers} layers"
            raise input_error(rule, received, "correct them")


def runs(tokens: range, span: int) -> Iterator[range]:
    """Tokens in runs that go up together, each seeing `span` positions."""
    length = max(span, LONGEST_RUN)
    return (tokens[first : first + length] for first in range(0, len(tokens), length))


# All models of the family by name; `schedules/__init__.py` lists them.
SCHEDULES: dict[str, type[Schedule]] = {}


def make_schedule(name: str, options: Mapping[str, Any]) -> Schedule:
    """The schedule with this name, or of this reference, and with these options.

    >>> make_schedule("staircase", {"chunk_size": 64, "num_passes": 4})
    Staircase(chunk_size=64, num_passes=4)
    """
    kind = schedule_kind(name)
    check_options(name, kind, options)
    return kind(**{option: _nested(tuple, value) for option, value in options.items()})


def _nested(kind: type[list[Any]] | type[tuple[Any, ...]], value: Any) -> Any:  # noqa: ANN401
    """Lists for a file, or the tuples of a schedule, which never changes; others as they are."""
    return kind(_nested(kind, part) for part in value) if isinstance(value, list | tuple) else value


def schedule_kind(name: str) -> type[Schedule]:
    """The schedule with this name, or of this reference, as a class."""
    # A file may have a list here, whose text would be a reference that nobody has to trust.
    if isinstance(name, str) and (":" in name or name.endswith(".py")):
        return load_reference(name, Schedule)  # type: ignore[type-abstract]
    check_choice("a schedule", name, SCHEDULES)
    return SCHEDULES[name]


def schedule_from_dict(data: Mapping[str, Any]) -> Schedule:
    """The inverse of `Schedule.to_dict`."""
    options = dict(data)
    name, reference = options.pop("name", None), options.pop("reference", None)
    return make_schedule(reference or name or "", options)
