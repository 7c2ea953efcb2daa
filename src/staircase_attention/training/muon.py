"""Muon for all matrices of a shape at once, at a rate that a captured update can read."""

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

POLYNOMIAL = (3.4445, -4.7750, 2.0315)
"""a, b, c of the step X to aX + b(XXᵀ)X + c(XXᵀ)²X, which brings singular values near one."""
NUM_STEPS = 5
LEAST_NORM = 1e-7


class StackedMuon(torch.optim.Optimizer):
    """What `torch.optim.Muon` does with `match_rms_adamw`, in far fewer products.

    PyTorch's takes one matrix after another, and its rate as a number, which a graph would keep for
    ever. This one stacks matrices of one shape; its rate may be a tensor, and `found_inf` is heeded
    as by PyTorch's fused Adam. Method and numbers: Jordan et al. (2024), "Muon: An optimizer for
    hidden layers in neural networks"; the size of steps: Liu et al. (2025), arXiv:2502.16982.
    """

    found_inf: Tensor | None = None
    """Over zero: the update is to be left out."""

    def __init__(
        self,
        matrices: Iterable[Tensor] | Iterable[dict[str, Any]],
        *,
        lr: Tensor | float,
        momentum: float,
        weight_decay: float,
    ) -> None:
        settings = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay}
        super().__init__(matrices, settings)
        for group in self.param_groups:
            for matrix in group["params"]:
                self.state[matrix]["momentum_buffer"] = torch.zeros_like(matrix)

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        """Change the matrices by their gradients."""
        for group in self.param_groups:
            alike = defaultdict(list)
            for matrix in group["params"]:
                if matrix.grad is not None:
                    alike[matrix.shape].append(matrix)
            for matrices in alike.values():
                gradients = torch.stack([matrix.grad for matrix in matrices])
                self._turn(matrices, gradients, **group)

    def _turn(
        self,
        matrices: list[Tensor],
        gradients: Tensor,
        *,
        lr: Tensor | float,
        momentum: float,
        weight_decay: float,
        **_: object,
    ) -> None:
        held = [self.state[matrix]["momentum_buffer"] for matrix in matrices]
        before, past = torch.stack(matrices), torch.stack(held)
        memory = past.lerp(gradients, 1 - momentum)
        turn = orthogonalised(gradients.lerp(memory, momentum)).to(before.dtype)
        size = 0.2 * max(before.shape[1:]) ** 0.5
        after = before - lr * (size * turn + weight_decay * before)
        if self.found_inf is not None:
            is_left_out = self.found_inf > 0
            after = torch.where(is_left_out, before, after)
            memory = torch.where(is_left_out, past, memory)
        torch._foreach_copy_(matrices, list(after.unbind()))
        torch._foreach_copy_(held, list(memory.unbind()))


def orthogonalised(stack: Tensor) -> Tensor:
    """Each matrix of a stack with its singular values near one, in bfloat16."""
    is_tall = stack.shape[1] > stack.shape[2]
    found = stack.bfloat16()
    found = found.mT if is_tall else found
    found = found / found.norm(dim=(1, 2), keepdim=True).clamp(min=LEAST_NORM)
    first, second, third = POLYNOMIAL
    for _ in range(NUM_STEPS):
        gram = found @ found.mT
        factor = torch.baddbmm(gram, gram, gram, beta=second, alpha=third)
        found = torch.baddbmm(found, factor, found, beta=first)
    return found.mT if is_tall else found
