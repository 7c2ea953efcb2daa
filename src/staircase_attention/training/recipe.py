"""A recipe: everything that fixes a training run, as one typed, complete config."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, ClassVar, Literal

from staircase_attention.layers import CoreConfig
from staircase_attention.schedules import Schedule
from staircase_attention.tasks import Growth
from staircase_attention.training.plain import from_plain, override, to_plain


def check(owner: object, name: str, rule: str, holds: Callable[[Any], bool]) -> None:
    """Refuse a setting that does not keep to its rule."""
    value = getattr(owner, name)
    if not holds(value):
        raise ValueError(
            f"{type(owner).__name__}.{name} must be {rule}, got {value}; give such a value"
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskChoice:
    """Which task, with which options."""

    kind: ClassVar[str] = "task"

    reference: str
    """A built-in task's name, or path/to/file.py:ClassName."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """What the task takes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CorpusChoice:
    """Which prepared corpus, read in which form."""

    kind: ClassVar[str] = "corpus"

    folder: str
    """Where `staircase prepare` put it."""
    form: Literal["stream", "episodic"] = "stream"
    """One text after another, or every segment a text of its own that is padded or cut to fit."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FamilyModel:
    """A model of the Staircase family."""

    kind: ClassVar[str] = "family"

    core: CoreConfig
    schedule: Schedule


@dataclass(frozen=True, kw_only=True, slots=True)
class LSTMModel:
    """The classical recurrent baseline."""

    kind: ClassVar[str] = "lstm"

    width: int
    """Size of the embedding and of the hidden state."""
    num_layers: int
    dropout: float = 0.0
    """Between layers and before the output."""

    def __post_init__(self) -> None:
        check(self, "width", "at least 1", lambda value: value >= 1)
        check(self, "num_layers", "at least 1", lambda value: value >= 1)
        check(self, "dropout", "at least 0 and under 1", lambda value: 0 <= value < 1)


@dataclass(frozen=True, kw_only=True, slots=True)
class OptimizerConfig:
    """How gradients become changes of weights."""

    kind: Literal["adam", "adamw", "muon"] = "adam"
    """Muon turns hidden matrices only; all other parameters are AdamW's."""
    learning_rate: float = 1e-4
    adamw_fraction: float = 1.0
    """Beside Muon: AdamW's rate, as a fraction of Muon's, which is `learning_rate`."""
    beta1: float = 0.9
    beta2: float = 0.999
    weight_decay: float = 0.0
    warm_up: int = 1000
    """Updates over which the rate rises from nearly zero."""
    decay: Literal["constant", "linear", "cosine"] = "constant"
    """What the rate does after the warm-up, until the last update."""
    final_fraction: float = 0.0
    """Where a decaying rate ends, as a fraction of its height."""
    gradient_clip: float | None = 0.1
    """Largest norm of all gradients together; None for no clipping."""

    def __post_init__(self) -> None:
        check(self, "learning_rate", "over 0 and finite", lambda value: 0 < value < math.inf)
        check(self, "adamw_fraction", "over 0 and finite", lambda value: 0 < value < math.inf)
        if self.kind != "muon" and self.adamw_fraction != 1:
            raise ValueError(
                "training.optimizer.adamw_fraction is for kind = muon, got "
                f"{self.adamw_fraction} with kind = {self.kind}; leave it out, or choose muon"
            )
        for name in ("beta1", "beta2"):
            check(self, name, "at least 0 and under 1", lambda value: 0 <= value < 1)
        check(self, "weight_decay", "at least 0", lambda value: value >= 0)
        check(self, "warm_up", "at least 0", lambda value: value >= 0)
        check(self, "final_fraction", "from 0 to 1", lambda value: 0 <= value <= 1)
        if self.gradient_clip is not None:
            check(self, "gradient_clip", "over 0, or none", lambda value: value > 0)


@dataclass(frozen=True, kw_only=True, slots=True)
class DivergenceConfig:
    """When a run counts as diverged, and what is done about it."""

    jump_factor: float = 1.5
    """The smoothed loss has jumped when it is this many times its lowest."""
    loss_floor: float = 0.1
    """A lower loss counts as this: near zero, every wobble is many times the lowest."""
    patience: int = 200
    """Updates for which it must stay there."""
    smoothing: float = 0.98
    """Weight of the past in the smoothed loss, an update; at first losses are averaged."""
    rate_factor: float = 0.5
    """What the learning rate is multiplied by at each return to a good checkpoint."""
    max_rollbacks: int = 3
    """Returns before the run gives up."""
    max_skips: int = 20
    """Updates in a row with gradients that are not finite before that counts as diverged too."""

    def __post_init__(self) -> None:
        check(self, "jump_factor", "over 1", lambda value: value > 1)
        check(self, "loss_floor", "at least 0", lambda value: value >= 0)
        check(self, "smoothing", "at least 0 and under 1", lambda value: 0 <= value < 1)
        check(self, "rate_factor", "over 0 and at most 1", lambda value: 0 < value <= 1)
        check(self, "max_rollbacks", "at least 0", lambda value: value >= 0)
        for name in ("patience", "max_skips"):
            check(self, name, "at least 1", lambda value: value >= 1)


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingConfig:
    """How long, on what batches, with what numbers, and what is kept."""

    num_updates: int
    num_lanes: int
    """Batch size over all processes; each lane is a contiguous stream."""
    segment_length: int
    """Tokens of a lane between two updates; gradients stop there."""
    restart_every: int | None = None
    """Updates after which all lanes begin anew, with empty states and, in tasks, new episodes."""
    growth: Growth = field(default_factory=Growth)
    """How long episodes of a task may be."""
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    precision: Literal["float32", "bfloat16"] = "float32"
    """bfloat16: matrix products under autocast, weights in float32."""
    num_micro_batches: int = 1
    """Parts into which a process cuts its lanes, one after another, to save memory."""
    recompute: bool = False
    """Compute activations again in the backward pass, to save memory in long segments."""
    engine: Literal["fast", "plain"] = "fast"
    """fast: on a GPU, fused kernels and whole updates captured as CUDA graphs; plain: neither."""
    log_every: int = 50
    evaluate_every: int = 1000
    checkpoint_every: int = 1000
    keep_every: int | None = None
    """Keep the checkpoints of these updates for good; None: the latest two and the best."""
    evaluation_lanes: int = 128
    evaluation_tokens: int | None = None
    """Tokens of a corpus's split that are scored, its first ones; None: all of them."""
    divergence: DivergenceConfig = field(default_factory=DivergenceConfig)

    def __post_init__(self) -> None:
        for name in COUNTS:
            check(self, name, "at least 1", lambda value: value >= 1)
        for name in ("restart_every", "keep_every", "evaluation_tokens"):
            if getattr(self, name) is not None:
                check(self, name, "at least 1, or none", lambda value: value >= 1)
        if self.keep_every is not None and self.keep_every % self.checkpoint_every:
            raise ValueError(
                "TrainingConfig.keep_every must be a multiple of checkpoint_every = "
                f"{self.checkpoint_every}, got {self.keep_every}; change one of them"
            )
        if self.num_lanes % self.num_micro_batches:
            raise ValueError(
                "TrainingConfig.num_micro_batches must divide num_lanes = "
                f"{self.num_lanes}, got {self.num_micro_batches}; change one of them"
            )


COUNTS = (
    "num_updates",
    "num_lanes",
    "segment_length",
    "num_micro_batches",
    "log_every",
    "evaluate_every",
    "checkpoint_every",
    "evaluation_lanes",
)
"""Settings of which there must be one at least."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """A run, complete."""

    name: str
    task: TaskChoice | CorpusChoice
    model: FamilyModel | LSTMModel
    training: TrainingConfig
    seed: int = 0
    """Fixes the initial weights and dropout."""
    data_seed: int = 0
    """Fixes the task's splits."""

    def __post_init__(self) -> None:
        for name in ("seed", "data_seed"):
            check(self, name, "from 0 to 2^63 - 1", lambda value: 0 <= value < 2**63)
        if isinstance(self.task, CorpusChoice) and self.training.growth.first_tokens is not None:
            raise ValueError(
                "training.growth.first_tokens must be none for a corpus, got "
                f"{self.training.growth.first_tokens}; leave it out, only episodes of tasks grow"
            )
        tokens = self.training.evaluation_tokens
        if isinstance(self.task, TaskChoice) and tokens is not None:
            raise ValueError(
                f"training.evaluation_tokens is for a corpus, got {tokens} with a task; leave it "
                "out, and let the task have fewer episodes if need be"
            )
        path = PurePosixPath(self.name)
        if path.is_absolute() or ".." in path.parts or not path.parts:
            raise ValueError(
                f"Recipe.name must do as the name of a folder, got {self.name!r}; rename it"
            )

    def to_plain(self) -> dict[str, Any]:
        """The recipe as plain data."""
        plain: dict[str, Any] = to_plain(self)
        return plain

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> "Recipe":
        """The inverse of `to_plain`, checked."""
        return from_plain(cls, plain, where="recipe")

    def override(self, assignments: Mapping[str, Any]) -> "Recipe":
        """The recipe with some settings changed, each named by its path.

        >>> from staircase_attention.training.recipe import EXAMPLE
        >>> EXAMPLE.override({"training.num_updates": 7}).training.num_updates
        7
        """
        return Recipe.from_plain(override(self.to_plain(), assignments))


EXAMPLE = Recipe(
    name="example",
    task=TaskChoice(reference="permutations", options={"group": "S2", "length": 16}),
    model=LSTMModel(width=16, num_layers=1),
    training=TrainingConfig(num_updates=10, num_lanes=4, segment_length=17),
)
"""A recipe that trains in a second."""
