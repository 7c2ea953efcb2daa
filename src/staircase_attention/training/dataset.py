"""What a model is trained on, whatever it is: lanes to learn from, batches to be scored on."""

from collections.abc import Iterator, Mapping
from typing import Any, Literal, Protocol

from staircase_attention.evaluation import Score, ScoredBatch
from staircase_attention.tasks import (
    Episodes,
    Growth,
    Lanes,
    Position,
    Task,
    evaluation_batches,
    split,
    training_source,
    with_length,
)

SplitName = Literal["train", "valid", "test"]


class TrainingBatch(ScoredBatch, Protocol):
    """One segment of every lane."""

    def rows(self, lanes: range) -> "TrainingBatch":
        """The part of the batch in these lanes."""


class LanePosition(Protocol):
    """Where every lane stands."""

    @property
    def update(self) -> int:
        """Batches given so far."""

    def as_plain(self) -> dict[str, Any]:
        """As plain data."""


class TrainingLanes(Protocol):
    """Batches whose rows are contiguous streams; a position is all there is to save."""

    def first_position(self) -> Any:  # noqa: ANN401
        """Where every lane begins."""

    def batch(self, position: Any) -> tuple[TrainingBatch, Any]:  # noqa: ANN401
        """The batch at a position, and the position after it."""

    def restarted(self, position: Any) -> Any:  # noqa: ANN401
        """Where lanes that stood at a position go on with empty states."""


class Symbols(Protocol):
    """How many there are: all that a model must know of its data."""

    @property
    def num_inputs(self) -> int:
        """Input symbols."""

    @property
    def num_outputs(self) -> int:
        """Output symbols."""


class Dataset(Symbols, Protocol):
    """Data to train on without end, and splits to be scored whole."""

    @property
    def carries_state(self) -> bool:
        """Whether a lane's segment goes on where the one before it ended."""

    def lanes(self, *, num_lanes: int, segment_length: int) -> TrainingLanes:
        """What to train on."""

    def position(self, plain: Mapping[str, Any]) -> LanePosition:
        """The position that `as_plain` wrote."""

    def batches(
        self, name: SplitName, *, num_lanes: int, segment_length: int
    ) -> Iterator[ScoredBatch]:
        """Every token of a split once."""

    def rank(self, score: Score) -> tuple[float, ...]:
        """What is compared between two scores: the lower, the better."""

    def facts(self, name: SplitName, score: Score) -> dict[str, float]:
        """What else a score on a split means, in the words of this kind of data."""


class TaskData:
    """Episodes of a state-tracking task."""

    carries_state = True

    def __init__(self, task: Task, seed: int, growth: Growth | None = None) -> None:
        self.task = task
        self.seed = seed
        self.growth = growth or Growth()

    @property
    def num_inputs(self) -> int:
        """Input symbols."""
        return self.task.num_inputs

    @property
    def num_outputs(self) -> int:
        """Possible answers."""
        return self.task.num_outputs

    def lanes(self, *, num_lanes: int, segment_length: int) -> Lanes:
        """Episodes one after another in every lane."""
        return Lanes(
            source=training_source(self.task, self.seed),
            num_lanes=num_lanes,
            segment_length=segment_length,
            growth=self.growth,
            closing_symbol=self.task.closing_symbol,
        )

    def position(self, plain: Mapping[str, Any]) -> Position:
        """The position that `as_plain` wrote."""
        return Position.from_plain(plain)

    def batches(
        self, name: SplitName, *, num_lanes: int, segment_length: int
    ) -> Iterator[ScoredBatch]:
        """Every token of a split once."""
        return evaluation_batches(
            self.episodes(name), num_lanes=num_lanes, segment_length=segment_length
        )

    def episodes(self, name: SplitName) -> Episodes:
        """Those of a split."""
        return split(self.task, name, self.seed)

    def rank(self, score: Score) -> tuple[float, ...]:
        """Errors first; the loss decides between equals."""
        return score.error, score.loss

    def facts(self, name: SplitName, score: Score) -> dict[str, float]:
        """Loss and error say it all."""
        return {}

    def with_length(self, length: int) -> "TaskData":
        """The same task with episodes of another length."""
        return TaskData(with_length(self.task, length), self.seed)
