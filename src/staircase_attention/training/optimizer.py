"""Optimisers behind one face: a rate that can be set, a state that is only tensors."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from staircase_attention.training.muon import StackedMuon
from staircase_attention.training.recipe import OptimizerConfig

FRACTION = "fraction"
"""What of the run's rate the rate of a group of parameters is."""


class Optimizer:
    """Adam, AdamW, or Muon for the hidden matrices with AdamW for all else.

    On a GPU they take their rate, and whether to step at all, from the device, so that a captured
    update can contain them.
    """

    def __init__(self, model: nn.Module, config: OptimizerConfig) -> None:
        self.names: dict[Tensor, str] = {
            parameter: name for name, parameter in model.named_parameters()
        }
        others = list(self.names)
        self.is_on_device = others[0].is_cuda
        """Whether rates are read from the device."""
        self.parts: list[torch.optim.Optimizer] = []
        if config.kind == "muon":
            matrices = [one for one in others if is_hidden_matrix(self.names[one], one)]
            others = [one for one in others if not is_hidden_matrix(self.names[one], one)]
            # Its steps are scaled to AdamW's size, so that one learning rate can serve both.
            muon = StackedMuon(
                _at_fraction(matrices, 1.0),
                lr=self._new_rate(),
                momentum=config.beta1,
                weight_decay=config.weight_decay,
            )
            self.parts.append(muon)
        kind = torch.optim.Adam if config.kind == "adam" else torch.optim.AdamW
        self.parts.append(
            kind(
                _at_fraction(others, config.adamw_fraction),
                lr=self._new_rate(),
                betas=(config.beta1, config.beta2),
                weight_decay=config.weight_decay,
                fused=self.is_on_device or None,
                capturable=self.is_on_device,
            )
        )

    def step(self, rate: Tensor, *, is_finite: Tensor) -> None:
        """Change the weights by their gradients, unless these are not finite."""
        for part in self.parts:
            if self.is_on_device:
                for group in part.param_groups:
                    group["lr"].copy_(rate * group[FRACTION])
                # PyTorch's own words for an update that is to be left out.
                part.found_inf = (~is_finite).float()  # type: ignore[attr-defined]
                part.step()
            elif is_finite:
                for group in part.param_groups:
                    group["lr"] = float(rate) * group[FRACTION]
                part.step()

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for part in self.parts:
            part.zero_grad(set_to_none=True)

    def _new_rate(self) -> Tensor | float:
        """What a part has for a rate until its first step: on a GPU, where it will be read."""
        return torch.zeros((), device=next(iter(self.names)).device) if self.is_on_device else 0.0

    def tensors(self) -> dict[str, Tensor]:
        """All that the optimiser remembers, by parameter."""
        return {
            f"{self.names[parameter]}/{key}": value.detach()
            for part in self.parts
            for parameter, kept in part.state.items()
            for key, value in kept.items()
        }

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Remember what `tensors` gave."""
        owners = {
            self.names[parameter]: (part, parameter)
            for part in self.parts
            for group in part.param_groups
            for parameter in group["params"]
        }
        for part in self.parts:
            for parameter, kept in part.state.items():
                for key in [key for key in kept if f"{self.names[parameter]}/{key}" not in tensors]:
                    # Before the first step Adam has nothing, which to it is the same as zeros.
                    kept[key].zero_()
        for name, value in tensors.items():
            owner, _, key = name.rpartition("/")
            part, parameter = owners[owner]
            kept = part.state[parameter]
            if key in kept:
                # In place: a captured update goes on using the same memory.
                kept[key].copy_(value)
            else:
                # PyTorch keeps the count of steps on the CPU, unless a capture is to include it.
                on_cpu = key == "step" and not self.is_on_device
                kept[key] = value.clone().to("cpu" if on_cpu else parameter.device)


def _at_fraction(parameters: list[Tensor], fraction: float) -> list[dict[str, Any]]:
    """A group in PyTorch's words."""
    return [{"params": parameters, FRACTION: fraction}]


def is_hidden_matrix(name: str, parameter: Tensor) -> bool:
    """Whether Muon is meant for it: a matrix between hidden states, not a table of vectors."""
    outside = ("embedding.", "output.", "core.positions.")
    return parameter.ndim == 2 and not name.startswith(outside)  # noqa: PLR2004
