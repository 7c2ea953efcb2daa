"""A recipe's model, and its update: forward and backward over a segment of every lane."""

import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor, nn

from staircase_attention.batches import IGNORED, Batch
from staircase_attention.checks import input_error, one_line
from staircase_attention.evaluation import autocast, loss_and_wrong
from staircase_attention.inspect import Inspection
from staircase_attention.models import LSTMSequenceModel, LSTMState, SequenceModel, State
from staircase_attention.models.depth import at_depth, in_passes_of
from staircase_attention.models.sequence_model import without_weights
from staircase_attention.training.dataset import Dataset, build_dataset
from staircase_attention.training.optimizer import Optimizer, part_like, whole_of
from staircase_attention.training.processes import Processes
from staircase_attention.training.recipe import LSTMModel, Recipe

# From this many symbols on, the logits of a whole segment are not held at once.
MANY_OUTPUTS = 4096
Model = SequenceModel | LSTMSequenceModel
# A lane state from one segment to the next; None before the first.
Carried = State | LSTMState | None
# The device's part of an update: inputs and states to results and states.
StepFunction = Callable[[tuple[Tensor, ...], list[Carried]], tuple[Tensor, list[Carried]]]


@dataclass(frozen=True, kw_only=True, slots=True)
class NumSymbols:
    """All that a model must know of its data."""

    num_inputs: int
    num_outputs: int


def build_model(recipe: Recipe, data: Dataset | NumSymbols) -> Model:
    """The model that a recipe describes, for the symbols of its data."""
    model = recipe.model
    sizes: dict[str, Any] = {"vocab_size": data.num_inputs, "output_size": data.num_outputs}
    if isinstance(model, LSTMModel):
        return LSTMSequenceModel(**sizes, **asdict(model))
    core, schedule, passes = model.core, model.schedule, recipe.training.passes
    deepest = schedule.with_passes(passes.numbers[-1]) if passes.numbers else schedule
    if deepest is not schedule and core.max_distance is None:
        reach = max(schedule.default_max_distance, deepest.default_max_distance)
        core = replace(core, max_distance=reach)
    family = SequenceModel(**sizes, core=core, schedule=schedule)
    # Refuses a table of positions that is too short for the deepest.
    family.with_schedule(deepest)
    family.recompute = recipe.training.recompute
    family.gradient_passes = passes.gradient_passes
    return family


def check_recipe(recipe: Recipe) -> Dataset:
    """Refuse a recipe whose data or model cannot be built, before anything is written."""
    data = build_dataset(recipe)
    data.check()
    with without_weights():
        build_model(recipe, data)
    return data


def precision_of(recipe: Recipe, device: torch.device | None = None) -> torch.dtype:
    """The dtype of matrix products; one that the device cannot compute the model in is refused."""
    dtype = {"float32": torch.float32, "bfloat16": torch.bfloat16}[recipe.training.precision]
    if dtype == torch.float32 or device is None or device.type != "cpu":
        return dtype
    # PyTorch's note, with C++ frames, that this CPU is slow at bfloat16; a run says so in a line.
    warnings.filterwarnings("ignore", message="mkldnn_matmul failed, switching to BLAS gemm")
    if isinstance(recipe.model, LSTMModel):
        # Tried out, since it depends on the processor: under autocast PyTorch leaves an LSTM to
        # oneDNN, which has none in bfloat16 for ARM without bfloat16 instructions.
        one, weights = torch.zeros(1, 1, 1), [torch.zeros(4, 1)] * 2 + [torch.zeros(4)] * 2
        try:
            with autocast(device, dtype):
                torch.lstm(one, (one, one), weights, True, 1, 0.0, False, False, False)
        except RuntimeError as error:
            rule = f"precision {recipe.training.precision} needs a device that has it for an LSTM"
            remedy = "use training.precision=float32 (of eval, --precision float32)"
            raise input_error(rule, f"{device} ({one_line(error)})", remedy) from error
    return dtype


class Objective(nn.Module):
    """A model, whose summed loss and wrong answers take the logits' place where targets are given.

    Sharded weights are gathered when this is called.
    """

    def __init__(self, model: Model, *, fuse_loss: bool, loss_after: str) -> None:
        super().__init__()
        self.model = model
        self.fuse_loss, self.loss_after = fuse_loss, loss_after

    def forward(
        self, inputs: Tensor, state: Carried, targets: Tensor | None = None
    ) -> tuple[Any, ...]:
        """Loss and wrong answers at all targets that are not IGNORED, and the state after them."""
        if targets is None:
            return tuple(self.model(inputs, state))
        if not self.fuse_loss and self.loss_after == "last":
            logits, after = self.model(inputs, state)
            return *loss_and_wrong(logits, targets), after
        model = self.model
        assert isinstance(model, SequenceModel)
        assert not isinstance(state, LSTMState)
        seen = Inspection(model, inputs.shape[1])
        watch = None if self.loss_after == "last" else seen.watch
        hidden, after = model.hidden(inputs, state, watch=watch)
        loss, wrong = self._loss(hidden, targets)
        if self.loss_after != "last":
            earlier = range(model.num_cut + 1, seen.num_passes)
            earlier = earlier[:1] if self.loss_after == "ends" else earlier
            losses = [self._loss(seen.hidden_after(number), targets)[0] for number in earlier]
            loss = torch.stack([*losses, loss]).mean()
        return loss, wrong, after

    def _loss(self, hidden: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        output = self.model.output
        if not self.fuse_loss:
            return loss_and_wrong(output(hidden), targets)
        # Triton is imported where it is used, since not every machine has it.
        from staircase_attention.engine.kernels.cross_entropy import linear_cross_entropy

        if torch.is_autocast_enabled(hidden.device.type):
            hidden = hidden.to(torch.get_autocast_dtype(hidden.device.type))
        return linear_cross_entropy(
            hidden.flatten(0, 1),
            output.weight,
            output.bias,
            targets.flatten(),
            ignore_index=IGNORED,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What one update showed, over all processes."""

    loss: float
    """Summed over the answers."""
    num_wrong: int
    num_answers: int
    gradient_norm: float
    was_applied: bool
    """Whether the weights changed: not if a gradient was not finite."""
    wants_stop: bool
    """Whether some process was asked to stop."""


class Learner:
    """Model, optimiser and lane states: all that an update changes."""

    def __init__(
        self,
        recipe: Recipe,
        model: Model,
        device: torch.device,
        processes: Processes,
        *,
        carries_state: bool = True,
        report: Callable[[str], None] = lambda text: None,
    ) -> None:
        config = recipe.training
        self.device, self.processes, self.carries_state = device, processes, carries_state
        self.model = model.train()
        self.precision = precision_of(recipe, device)
        if self.precision == torch.bfloat16 and device.type == "cpu":
            report("many CPUs are slow at bfloat16: training.precision=float32 may be faster")
        self.gradient_clip = config.optimizer.gradient_clip
        is_fast = config.engine == "fast" and device.type == "cuda"
        # cuDNN's LSTM is a few large kernels, and keeps the random numbers of dropout to itself.
        is_fast &= isinstance(model, SequenceModel)
        fuse_loss = is_fast and model.output_size >= MANY_OUTPUTS and bool(find_spec("triton"))
        # Where weights are sharded, FSDP adds methods to it.
        self.objective: Any = Objective(
            self.model, fuse_loss=fuse_loss, loss_after=config.passes.loss
        )
        self.is_sharded = config.parallel != "ddp" and processes.count > 1
        """Whether this process keeps only a part of every weight."""
        if self.is_sharded:
            self._shard(config.parallel)
        else:
            self.model.to(device)
            # All processes begin with the first one's weights.
            for tensor in self.model.state_dict().values() if processes.count > 1 else ():
                dist.broadcast(tensor, src=0)
        self.optimizer = Optimizer(self.model, config.optimizer)
        self.states: list[Carried] = [None] * config.num_micro_batches
        """The lane states, one per micro-batch."""
        self.passes: list[int | None] = [*config.passes.of_parts] or [None] * len(self.states)
        """The passes that each micro-batch makes; None: those of the schedule."""
        self.step: StepFunction = self._step
        if is_fast:
            self._accelerate(report)

    def _shard(self, parallel: str) -> None:
        """Leave a part of every weight to each process; FSDP gathers them when they are used."""
        # Imported where it is used, since it takes seconds.
        from torch.distributed.fsdp import (
            MixedPrecisionPolicy,
            fully_shard,
            register_fsdp_forward_method,
        )

        # Of outputs that are changed in place: here none is.
        warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view")
        kind, _, unit = parallel.partition("-")
        mesh = self.processes.mesh(self.device, by_node=kind == "hsdp")
        policy = MixedPrecisionPolicy()
        if self.precision != torch.float32:
            policy = MixedPrecisionPolicy(param_dtype=self.precision, reduce_dtype=torch.float32)
        groups: list[nn.Module] = [self.objective]
        if unit and isinstance(self.model, SequenceModel):
            groups = [*self.model.core.layers, self.objective]
        # Checkpoints are written while other groups are in use.
        self.writers = dist.new_group(backend="gloo")
        for group in groups:
            is_whole = group is self.objective
            sharded = fully_shard(
                group, mesh=mesh, mp_policy=policy, reshard_after_forward=not is_whole
            )
            # The loss is a share of the batch's already: gradients are added, not averaged.
            sharded.set_gradient_divide_factor(1.0)
            sharded.set_force_sum_reduction_for_comms(True)
            if not is_whole:
                register_fsdp_forward_method(group, "keys_values")

    def load_weights(self, tensors: Mapping[str, Tensor]) -> None:
        """Replace the weights by these, of which a sharded model takes its part."""
        self.reshard()
        own = self.model.state_dict()
        self.model.load_state_dict(
            {name: part_like(one, own.get(name, one)) for name, one in tensors.items()}
        )

    def reshard(self) -> None:
        """Free what was gathered of other processes' weights, if no backward pass did."""
        if self.is_sharded:
            self.objective.reshard()

    def _accelerate(self, report: Callable[[str], None]) -> None:
        """Use the engine's kernels, and capture whole updates as CUDA graphs."""
        from staircase_attention import engine
        from staircase_attention.engine.capture import CapturedUpdates

        assert isinstance(self.model, SequenceModel)
        engine.accelerate(self.model)
        if self.is_sharded:
            report("updates are not captured: sharded weights move while they are computed")
            return
        self.step = CapturedUpdates(self._step, self.model, report=report)

    def restart(self) -> None:
        """Give every lane an empty state."""
        self.states = [None] * len(self.states)

    def update(
        self,
        batch: Batch,
        *,
        lanes: range,
        rate: float,
        wants_stop: bool,
        num_passes: int | None = None,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> Outcome:
        """Learn from one segment of this process's lanes, in a number of passes.

        None: that of the model's schedule. `meanwhile` runs on the host while the device is busy.
        """
        own = batch.rows(lanes)
        # Every answer of the batch has the same weight, whichever process has it.
        share = 1 / max(1, batch.num_answers)
        numbers = np.array([share, rate, wants_stop], dtype=np.float64)
        inputs = tuple(self._on_device(part) for part in (own.inputs, own.targets, numbers))
        self._convert_states(num_passes, lanes)
        with torch.cuda.device_of(inputs[0]):  # type: ignore[no-untyped-call]
            results, self.states = self.step(inputs, self.states)
        # CUDA graphs change weights without PyTorch's notice; this invalidates cached copies.
        torch.autograd.graph.increment_version(list(self.model.parameters()))
        meanwhile()
        loss, wrong, stops, norm = results.tolist()
        was_applied = math.isfinite(norm)
        if not was_applied:
            # A state that is not finite would spoil every later segment.
            self.restart()
        return Outcome(
            loss=loss,
            num_wrong=round(wrong),
            num_answers=batch.num_answers,
            gradient_norm=norm,
            was_applied=was_applied,
            wants_stop=stops > 0,
        )

    def _convert_states(self, num_passes: int | None, lanes: range) -> None:
        """Let the state of each micro-batch be one of as many passes as it is to make."""
        # As `_step` cuts a batch: where lanes cannot be shared equally, the first have one more.
        parts = zip(self.states, self.passes, np.array_split(lanes, len(self.states)), strict=True)
        for part, (state, own, rows) in enumerate(parts):
            if number := num_passes or own:
                assert isinstance(self.model, SequenceModel)
                model = self.model.with_schedule(self.model.schedule.with_passes(number))
                state = state if isinstance(state, State) else model.initial_state(len(rows))
                self.states[part] = at_depth(model, state)

    def _step(
        self, inputs: tuple[Tensor, ...], states: list[Carried]
    ) -> tuple[Tensor, list[Carried]]:
        """The device's part of an update: loss, wrong answers, stop requests, gradient norm."""
        tokens, targets, (share, rate, wants_stop) = inputs
        self.model.zero_grad()
        totals = torch.zeros(2, dtype=torch.float64, device=self.device)
        count = len(states)
        parts = zip(tokens.tensor_split(count), states, targets.tensor_split(count), strict=True)
        after: list[Carried] = []
        for part in parts:
            if self.is_sharded:
                # Gather weights before the first micro-batch, add up gradients after the last.
                is_last = len(after) == count - 1
                self.objective.set_requires_gradient_sync(is_last, recurse=False)
                self.objective.set_reshard_after_backward(is_last, recurse=False)
            with autocast(self.device, self.precision), in_passes_of(self.model, part[1]):
                loss, wrong, state = self.objective(*part)
            torch.autograd.backward(loss * share.to(loss.dtype))
            totals += torch.stack([loss.detach().double(), wrong.double()])
            # The one place where gradients of a stream are cut.
            after.append(state.detach() if self.carries_state else None)
        results = torch.stack([*totals, wants_stop])
        self.processes.total(results)
        gradients = [one.grad for one in self.model.parameters() if one.grad is not None]
        # Once per update, after the last micro-batch, and a part of captured updates.
        if not self.is_sharded:
            self.processes.total(*gradients)
        limit = float("inf") if self.gradient_clip is None else self.gradient_clip
        norm = whole_of(nn.utils.clip_grad_norm_(self.model.parameters(), limit))
        try:
            self.optimizer.step(rate, is_finite=torch.isfinite(norm))
        except torch.OutOfMemoryError as error:
            # No longer an OutOfMemoryError, after which captured updates would repeat the update:
            # some weights have changed already.
            raise RuntimeError(
                "memory ran out while weights were changing; train with fewer lanes, more "
                "training.num_micro_batches or training.recompute, and resume from the latest "
                f"checkpoint ({error})"
            ) from error
        return torch.stack([*results, norm.double()]), after

    def _on_device(self, array: NDArray[Any]) -> Tensor:
        tensor = torch.from_numpy(array)
        if self.device.type != "cuda":
            return tensor
        pinned = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        # A copy by PyTorch would wake a thread for every core, and wait for the last of them.
        np.copyto(pinned.numpy(), array)
        return pinned.to(self.device, non_blocking=True)
