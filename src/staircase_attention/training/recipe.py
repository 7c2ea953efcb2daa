"""A recipe: everything that fixes a training run, as one typed, complete config."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, ClassVar, Literal

import numpy as np

from staircase_attention.checks import InputError, check_fields, input_error
from staircase_attention.layers import CoreConfig
from staircase_attention.plain import from_plain, override, to_plain
from staircase_attention.schedules import Schedule
from staircase_attention.tasks import Growth

# Passes that may be drawn.
MOST_PASSES = 1024
# PyTorch's and NumPy's generators both take these seeds.
MOST_SEED = 2**63 - 1


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskChoice:
    """A task and its options."""

    kind: ClassVar[str] = "task"

    reference: str
    """A built-in task's name, path/to/file.py:ClassName or package.module:ClassName."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the task."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CorpusChoice:
    """A prepared corpus and how it is read."""

    kind: ClassVar[str] = "corpus"

    folder: str
    """The output of `staircase prepare`."""
    form: Literal["stream", "episodic"] = "stream"
    """One document after another, or one document per segment, padded or cut to fit."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FamilyModel:
    """A model of the Staircase family."""

    kind: ClassVar[str] = "family"

    core: CoreConfig
    schedule: Schedule


@dataclass(frozen=True, kw_only=True, slots=True)
class LSTMModel:
    """The recurrent baseline."""

    kind: ClassVar[str] = "lstm"

    width: int
    """Size of the embedding and of the hidden state."""
    num_layers: int
    dropout: float = field(default=0.0, metadata={"below": 1})
    """Between layers and before the output."""

    def __post_init__(self) -> None:
        check_fields(self, "LSTMModel.")


@dataclass(frozen=True, kw_only=True, slots=True)
class OptimizerConfig:
    """Optimiser, learning rate and clipping."""

    kind: Literal["adam", "adamw", "muon"] = "adam"
    """Muon orthogonalises updates of hidden matrices; AdamW has all other parameters."""
    learning_rate: float = field(default=1e-4, metadata={"above": 0})
    adamw_fraction: float = field(default=1.0, metadata={"above": 0})
    """With Muon: AdamW's rate as a fraction of `learning_rate`, which is Muon's."""
    beta1: float = field(default=0.9, metadata={"below": 1})
    beta2: float = field(default=0.999, metadata={"below": 1})
    weight_decay: float = field(default=0.0, metadata={"minimum": 0})
    warm_up: int = field(default=1000, metadata={"minimum": 0})
    """Updates of linear warm-up."""
    decay: Literal["constant", "linear", "cosine"] = "constant"
    """The rate between the warm-up and the last update."""
    decay_part: float = field(default=1.0, metadata={"above": 0, "maximum": 1})
    """The last part of those updates, in which the rate decays; before it the rate is constant."""
    final_fraction: float = field(default=0.0, metadata={"maximum": 1})
    """The last rate of a decay, as a fraction of `learning_rate`."""
    gradient_clip: float | None = field(default=0.1, metadata={"above": 0, "maximum": math.inf})
    """Maximum norm of all gradients together; None: no clipping."""

    def __post_init__(self) -> None:
        check_fields(self, "OptimizerConfig.")
        if self.kind != "muon" and self.adamw_fraction != 1:
            rule = "training.optimizer.adamw_fraction is for kind = muon"
            received = f"{self.adamw_fraction} with kind = {self.kind}"
            raise input_error(rule, received, "leave it out, or choose muon")


@dataclass(frozen=True, kw_only=True, slots=True)
class DivergenceConfig:
    """When a run has diverged, and what follows."""

    jump_factor: float = field(default=1.5, metadata={"above": 1, "maximum": math.inf})
    """The smoothed loss is high above this many times its lowest value."""
    loss_floor: float = field(default=0.1, metadata={"minimum": 0, "maximum": math.inf})
    """Lower losses count as this: near zero, noise is many times the lowest."""
    patience: int = 200
    """Consecutive updates with a high loss that mean divergence."""
    smoothing: float = field(default=0.98, metadata={"below": 1})
    """Weight of the past in the smoothed loss, per update; the first losses are averaged."""
    rate_factor: float = field(default=0.5, metadata={"above": 0, "maximum": 1})
    """Factor of the learning rate at each rollback to a healthy checkpoint."""
    max_rollbacks: int = field(default=3, metadata={"minimum": 0})
    """Rollbacks before the run gives up."""
    max_skips: int = 20
    """Consecutive updates with gradients that are not finite that mean divergence too."""

    def __post_init__(self) -> None:
        check_fields(self, "DivergenceConfig.")


@dataclass(frozen=True, kw_only=True, slots=True)
class PassesConfig:
    """How many passes the core makes in each update, if not always the schedule's.

    >>> config = PassesConfig(kind="uniform", most=4)
    >>> [config.draw(update, 100, seed=0) for update in range(8)]
    [3, 1, 2, 4, 4, 1, 3, 2]
    """

    kind: Literal["fixed", "uniform", "list", "poisson", "parts"] = "fixed"
    """fixed: the schedule's number; uniform: least to most; list: one of `choices`; poisson: 1 plus
    a Poisson number whose rate is log-normal, at most `most`; parts: every update makes all
    `choices`, one in each of as many micro-batches, so that lanes keep their number."""
    least: int = 1
    most: int = field(default=8, metadata={"maximum": MOST_PASSES})
    choices: tuple[int, ...] = ()
    """A number that is repeated is drawn more often."""
    mean: float = field(default=4.0, metadata={"above": 1, "maximum": MOST_PASSES})
    """Of a Poisson draw, before it is cut to `least` and `most`."""
    deviation: float = field(default=0.5, metadata={"minimum": 0, "maximum": 10})
    """Standard deviation of the logarithm of a Poisson draw's rate."""
    growth_part: float = field(default=0.0, metadata={"maximum": 1})
    """The first part of the updates, in which the largest number, or the mean, grows from least."""
    hold: int = 1
    """Updates in a row that make the number drawn. A state that is converted to more passes is not
    what they would have left: the more updates follow, the fewer of them see it."""
    gradient_passes: int | None = None
    """Gradients flow through this many last passes only; None: through all."""
    loss: Literal["last", "every", "ends"] = "last"
    """The loss after the last pass, or the mean of those after every pass (ends: the first and the
    last) through which gradients flow. After k passes a Ladder is a model of k passes; any model
    says what it drafts in k passes."""

    def __post_init__(self) -> None:
        check_fields(self, "PassesConfig.")
        if self.most < self.least:
            rule = f"PassesConfig.most must be at least {self.least}, which is least"
            raise input_error(rule, self.most, "change one of them")
        if not all(1 <= one <= MOST_PASSES for one in self.choices):
            rule = f"PassesConfig.choices must be from 1 to {MOST_PASSES:,} each"
            raise input_error(rule, list(self.choices), "change them")
        if bool(self.choices) != (self.kind in ("list", "parts")):
            rule = "training.passes.choices are for kind = list or parts, which need them"
            raise input_error(rule, f"{list(self.choices)} with {self.kind}", "change one of them")

    @property
    def numbers(self) -> tuple[int, ...]:
        """The numbers that may be drawn; none if it is always the schedule's."""
        every = tuple(range(self.least, self.most + 1))
        return {"fixed": ()}.get(self.kind, tuple(sorted(self.choices)) or every)

    @property
    def of_parts(self) -> tuple[int, ...]:
        """The numbers of the micro-batches, where each keeps its own."""
        return self.choices if self.kind == "parts" else ()

    def draw(self, update: int, num_updates: int, *, seed: int) -> int | None:
        """The number of passes of an update, counted from 0; None: none is drawn.

        It follows from the seed and the update alone. Numbers of a range or list take turns: each
        comes once in as many updates as there are, in a new random order.
        """
        if self.kind in ("fixed", "parts"):
            return None
        first, last = self.numbers[0], self.numbers[-1]
        held = update // self.hold
        grown = min(1.0, (held * self.hold + 1) / max(1.0, self.growth_part * num_updates))
        if self.kind == "poisson":
            generator = np.random.default_rng((seed, held))
            # The mean of a log-normal number is exp(mu + deviation² / 2).
            mu = math.log(grown * (self.mean - 1)) - self.deviation**2 / 2
            rate = generator.lognormal(mu, self.deviation)
            return int(np.clip(1 + generator.poisson(rate), first, last))
        allowed = [number for number in self.numbers if number <= first + grown * (last - first)]
        turn, place = divmod(held, len(allowed))
        return int(np.random.default_rng((seed, turn)).permutation(allowed)[place])


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingConfig:
    """Budget, batches, precision, logging and checkpoints."""

    num_updates: int
    num_lanes: int
    """Batch size over all processes; each lane is a contiguous stream."""
    segment_length: int
    """Tokens per lane and update; gradients are cut between segments."""
    restart_every: int | None = None
    """Updates after which all lanes restart with empty states and, in tasks, new episodes."""
    growth: Growth = field(default_factory=Growth)
    """How the length of a task's episodes grows."""
    passes: PassesConfig = field(default_factory=PassesConfig)
    """The number of passes of each update."""
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    precision: Literal["float32", "bfloat16"] = "float32"
    """bfloat16: matrix products under autocast, weights in float32."""
    num_micro_batches: int = 1
    """Parts of a process's lanes that are computed one after another, to save memory."""
    recompute: bool = False
    """Recompute activations in the backward pass, to save memory."""
    engine: Literal["fast", "plain"] = "fast"
    """fast: on a GPU, fused kernels and whole updates captured as CUDA graphs; plain: neither."""
    parallel: Literal["ddp", "fsdp", "fsdp-layers", "hsdp", "hsdp-layers"] = "ddp"
    """Of several processes. ddp: each has all weights, gradients and optimiser state. fsdp: each
    keeps a part, and weights are gathered once per update; fsdp-layers: layer by layer, at each
    use. hsdp: the parts are shared among the processes of a node, and every node has them all."""
    log_every: int = 50
    evaluate_every: int = 1000
    checkpoint_every: int = 1000
    keep_every: int | None = None
    """Keep every checkpoint at a multiple of this; None: only the latest two and the best."""
    evaluation_lanes: int = 128
    evaluation_tokens: int | None = None
    """Validate on only this many first tokens of a corpus; None: on all. The test is whole."""
    divergence: DivergenceConfig = field(default_factory=DivergenceConfig)
    stall_seconds: float = field(default=600.0, metadata={"above": 0})
    """Of several processes: the run ends if one does not respond for this long."""

    def __post_init__(self) -> None:
        check_fields(self, "TrainingConfig.")
        # Otherwise some multiple of it would have no checkpoint.
        if self.keep_every is not None and self.keep_every % self.checkpoint_every:
            rule = f"keep_every must be a multiple of checkpoint_every = {self.checkpoint_every}"
            raise input_error(rule, self.keep_every, "change one of them")
        if self.passes.of_parts and len(self.passes.of_parts) != self.num_micro_batches:
            rule = f"passes.choices must be {self.num_micro_batches} numbers, one per micro-batch"
            raise input_error(rule, list(self.passes.choices), "change one of them")
        if self.num_lanes % self.num_micro_batches:
            rule = f"num_micro_batches must divide num_lanes = {self.num_lanes}"
            raise input_error(rule, self.num_micro_batches, "change one of them")


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """A complete run."""

    name: str
    task: TaskChoice | CorpusChoice
    model: FamilyModel | LSTMModel
    training: TrainingConfig
    seed: int = field(default=0, metadata={"minimum": 0, "maximum": MOST_SEED})
    """Seed of initial weights and dropout."""
    data_seed: int = field(default=0, metadata={"minimum": 0, "maximum": MOST_SEED})
    """Seed of the data."""

    def __post_init__(self) -> None:
        check_fields(self, "Recipe.")
        first_tokens, tokens = self.training.growth.first_tokens, self.training.evaluation_tokens
        if isinstance(self.task, CorpusChoice) and first_tokens is not None:
            rule = "training.growth.first_tokens must be none for a corpus"
            raise input_error(rule, first_tokens, "leave it out, only episodes of tasks grow")
        if isinstance(self.task, TaskChoice) and tokens is not None:
            rule = "training.evaluation_tokens is for a corpus"
            raise input_error(rule, f"{tokens} with a task", "leave it out, or use fewer episodes")
        for name in ("evaluation_tokens", "segment_length"):
            if getattr(self.training, name) == 1 and getattr(self.task, "form", "") == "episodic":
                rule = f"training.{name} must be at least 2 for a corpus of form episodic"
                remedy = "use more, since the first token of an episode is not predicted"
                raise input_error(rule, 1, remedy)
        # Runs without a folder of their own are kept under this name.
        path = PurePosixPath(self.name)
        if path.is_absolute() or ".." in path.parts or not path.parts:
            raise input_error("Recipe.name must be a folder's name", repr(self.name), "rename it")
        passes, model = self.training.passes, self.model
        if passes == PassesConfig():
            return
        if not isinstance(model, FamilyModel):
            rule = "training.passes is for models that make passes"
            raise input_error(rule, model.kind, "leave it out")
        for number in passes.numbers[:1] + passes.numbers[-1:] or (1,):
            model.schedule.with_passes(number)
        order = getattr(model.schedule, "order", "ABAB")
        if (passes.gradient_passes or passes.loss != "last") and order == "AABB":
            rule = "training.passes.gradient_passes and loss are for layers in the order ABAB"
            received = "AABB, whose first layer makes all its passes first"
            raise input_error(rule, received, "leave them out")

    def to_plain(self) -> dict[str, Any]:
        """The recipe as plain data."""
        return dict(to_plain(self))

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> "Recipe":
        """The inverse of `to_plain`, checked."""
        return from_plain(cls, plain, "recipe")

    def override(self, assignments: Mapping[str, Any]) -> "Recipe":
        """The recipe with some settings changed, each named by its path.

        A dictionary changes only the settings that it names.

        >>> from staircase_attention.training import load_run
        >>> recipe = load_run("pretrained:parity-staircase").recipe
        >>> recipe.override({"training.num_updates": 7}).training.num_updates
        7
        """
        try:
            return Recipe.from_plain(override(self.to_plain(), assignments))
        except InputError as error:
            # Of several recipes some may not have a setting.
            raise InputError(f"{self.name}: {error}") from error
