"""Optimisers with one interface: a learning rate per step, and a state that is only tensors."""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from staircase_attention.training.recipe import OptimizerConfig

# Name in parameter groups: the group's rate as a fraction of the run's.
FRACTION = "fraction"
# a, b, c of Muon's step X -> aX + b(XXᵀ)X + c(XXᵀ)²X, which brings singular values near one.
POLYNOMIAL = (3.4445, -4.7750, 2.0315)
NUM_STEPS = 5
LEAST_NORM = 1e-7


def learning_rate(config: OptimizerConfig, update: int, num_updates: int) -> float:
    """The rate at an update, counted from 0: warm-up, then constant, linear or cosine.

    >>> config = OptimizerConfig(learning_rate=1.0, warm_up=4, decay="linear", decay_part=0.5)
    >>> [learning_rate(config, update, num_updates=12) for update in range(12)]
    [0.25, 0.5, 0.75, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.75, 0.5, 0.25]
    """
    if update < config.warm_up:
        return config.learning_rate * (update + 1) / config.warm_up
    done = (update - config.warm_up) / max(1, num_updates - config.warm_up)
    done = max(0.0, done - (1.0 - config.decay_part)) / config.decay_part
    shape = {
        "constant": 1.0,
        "linear": 1.0 - done,
        "cosine": 0.5 * (1.0 + math.cos(math.pi * done)),
    }[config.decay]
    floor = 0.0 if config.decay == "constant" else config.final_fraction
    return config.learning_rate * (floor + (1.0 - floor) * shape)


def is_sharded(tensor: Tensor) -> bool:
    """Whether a tensor is a DTensor, of which each process has a part."""
    return hasattr(tensor, "placements")


def whole_of(tensor: Any) -> Tensor:  # noqa: ANN401
    """All of a tensor, gathered from the processes if it is sharded."""
    whole: Tensor = tensor.full_tensor() if is_sharded(tensor) else tensor
    return whole


def part_like(whole: Tensor, like: Any) -> Tensor:  # noqa: ANN401
    """This process's part of a tensor, where `like` is sharded; elsewhere the tensor."""
    if not is_sharded(like):
        return whole
    # Imported where it is used, since it takes a second.
    from torch.distributed.tensor import distribute_tensor

    # Every process has the whole, so that nothing is sent.
    return distribute_tensor(whole, like.device_mesh, like.placements, src_data_rank=None)


class Optimizer:
    """Adam, AdamW, or Muon for hidden matrices with AdamW for all other parameters.

    On a GPU the rate, and whether to step at all, are read from the device, so that a CUDA graph
    can contain the step.
    """

    def __init__(self, model: nn.Module, config: OptimizerConfig) -> None:
        self.names: dict[Tensor, str] = {one: name for name, one in model.named_parameters()}
        others = list(self.names)
        # Sharded weights are not captured, and their optimiser takes numbers only.
        self.is_on_device = others[0].is_cuda and not is_sharded(others[0])
        """Whether rates are tensors on a GPU."""
        self.parts: list[torch.optim.Optimizer] = []
        if config.kind == "muon":
            matrices = [one for one in others if is_hidden_matrix(self.names[one], one)]
            others = [one for one in others if not is_hidden_matrix(self.names[one], one)]
            # Its steps are scaled to AdamW's size, so that one learning rate can serve both.
            muon = StackedMuon(
                [{"params": matrices, FRACTION: 1.0}],
                lr=self._new_rate(),
                momentum=config.beta1,
                weight_decay=config.weight_decay,
            )
            self.parts.append(muon)
        kind = torch.optim.Adam if config.kind == "adam" else torch.optim.AdamW
        self.parts.append(
            kind(
                [{"params": others, FRACTION: config.adamw_fraction}],
                lr=self._new_rate(),
                betas=(config.beta1, config.beta2),
                weight_decay=config.weight_decay,
                fused=self.is_on_device or None,
                capturable=self.is_on_device,
            )
        )

    def step(self, rate: Tensor, *, is_finite: Tensor) -> None:
        """Update the weights, unless the gradients are not finite."""
        for part in self.parts:
            if self.is_on_device:
                for group in part.param_groups:
                    group["lr"].copy_(rate * group[FRACTION])
                # PyTorch's own name for an update to skip.
                part.found_inf = (~is_finite).float()  # type: ignore[attr-defined]
                part.step()
            elif is_finite:
                for group in part.param_groups:
                    group["lr"] = float(rate) * group[FRACTION]
                part.step()

    def _new_rate(self) -> Tensor | float:
        """A rate before the first step: on a GPU a tensor that steps write to."""
        return torch.zeros((), device=next(iter(self.names)).device) if self.is_on_device else 0.0

    def tensors(self) -> dict[str, Tensor]:
        """The optimiser's state, by parameter."""
        return {
            f"{self.names[parameter]}/{key}": value.detach()
            for part in self.parts
            for parameter, kept in part.state.items()
            for key, value in kept.items()
        }

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore the state that `tensors` gave."""
        owners = {
            self.names[parameter]: (part, parameter)
            for part in self.parts
            for group in part.param_groups
            for parameter in group["params"]
        }
        for part in self.parts:
            for parameter, kept in part.state.items():
                for key in [key for key in kept if f"{self.names[parameter]}/{key}" not in tensors]:
                    # Adam has no state before its first step, which is the same as zeros.
                    kept[key].zero_()
        for name, value in tensors.items():
            owner, _, key = name.rpartition("/")
            part, parameter = owners[owner]
            kept, value = part.state[parameter], value.view(()) if key == "step" else value
            if key in kept:
                # In place: a CUDA graph keeps using the same memory.
                kept[key].copy_(part_like(value, kept[key]))
            else:
                # PyTorch keeps the number of steps on the CPU, unless a CUDA graph includes it.
                on_cpu = key == "step" and not self.is_on_device
                value = value.clone().to("cpu" if on_cpu else parameter.device)
                kept[key] = part_like(value, parameter) if key != "step" else value
        if any(len({*map(frozenset, part.state.values())}) > 1 for part in self.parts):
            raise ValueError("some parameters have other optimiser states than others")


def _local_parts(tensors: Iterable[Any]) -> list[Tensor]:
    """What this process holds of tensors; PyTorch has no such copies of sharded ones."""
    return [one.to_local() if is_sharded(one) else one for one in tensors]


def is_hidden_matrix(name: str, parameter: Tensor) -> bool:
    """Whether Muon is meant for it: a matrix between hidden states, not an embedding table."""
    outside = ("embedding.", "output.", "core.positions.")
    return parameter.ndim == 2 and not name.startswith(outside)  # noqa: PLR2004


class StackedMuon(torch.optim.Optimizer):
    """`torch.optim.Muon` with `match_rms_adamw`, for all matrices of one shape at once.

    PyTorch's loops over matrices, and takes its rate as a number, which a CUDA graph would fix.
    Here the rate may be a tensor, and `found_inf` works as in PyTorch's fused Adam. Of sharded
    matrices, all of one shape are gathered at once; every process orthogonalises them all, and
    changes its own part. Method and numbers: Jordan et al. (2024), "Muon: An optimizer for
    hidden layers in neural networks"; the size of steps: Liu et al. (2025), arXiv:2502.16982.
    """

    found_inf: Tensor | None = None
    """Over zero: skip the update."""

    def __init__(self, matrices: Iterable[Any], **settings: Tensor | float) -> None:
        """Args: matrices, or groups of them; and lr, momentum and weight_decay."""
        super().__init__(matrices, settings)
        for group in self.param_groups:
            for matrix in group["params"]:
                self.state[matrix]["momentum_buffer"] = torch.zeros_like(matrix)

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        """Update the matrices by their gradients."""
        for group in self.param_groups:
            alike = defaultdict(list)
            for matrix in group["params"]:
                if matrix.grad is not None:
                    alike[matrix.shape].append(matrix)
            for matrices in alike.values():
                gradients = torch.stack([matrix.grad for matrix in matrices])
                self._update(matrices, gradients, group)

    def _update(self, matrices: list[Tensor], gradients: Tensor, group: dict[str, Any]) -> None:
        lr, momentum, weight_decay = (group[key] for key in ("lr", "momentum", "weight_decay"))
        held = [self.state[matrix]["momentum_buffer"] for matrix in matrices]
        before, past = torch.stack(matrices), torch.stack(held)
        memory = past.lerp(gradients, 1 - momentum)
        direction = orthogonalised(whole_of(gradients.lerp(memory, momentum))).to(before.dtype)
        direction = part_like(direction, before)
        size = 0.2 * max(before.shape[1:]) ** 0.5
        after = before - lr * (size * direction + weight_decay * before)
        if self.found_inf is not None:
            is_skipped = self.found_inf > 0
            after = torch.where(is_skipped, before, after)
            memory = torch.where(is_skipped, past, memory)
        for targets, sources in ((matrices, after.unbind()), (held, memory.unbind())):
            torch._foreach_copy_(_local_parts(targets), _local_parts(sources))


def orthogonalised(stack: Tensor) -> Tensor:
    """Each matrix of a stack with its singular values near one; on a GPU in bfloat16.

    Many CPUs multiply bfloat16 hundreds of times more slowly than float32.
    """
    is_tall = stack.shape[1] > stack.shape[2]
    found = stack.bfloat16() if stack.is_cuda else stack
    found = found.mT if is_tall else found
    found = found / found.norm(dim=(1, 2), keepdim=True).clamp(min=LEAST_NORM)
    first, second, third = POLYNOMIAL
    for _ in range(NUM_STEPS):
        gram = found @ found.mT
        factor = torch.baddbmm(gram, gram, gram, beta=second, alpha=third)
        found = torch.baddbmm(found, factor, found, beta=first)
    return found.mT if is_tall else found
