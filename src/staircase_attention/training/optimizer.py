"""PyTorch's optimisers behind one face: a rate that can be set, a state that is only tensors."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from staircase_attention.training.recipe import OptimizerConfig


class Optimizer:
    """Adam, AdamW, or Muon for the hidden matrices with AdamW for all else."""

    def __init__(self, model: nn.Module, config: OptimizerConfig) -> None:
        self.names: dict[Tensor, str] = {
            parameter: name for name, parameter in model.named_parameters()
        }
        betas = (config.beta1, config.beta2)
        rate, decay = config.learning_rate, config.weight_decay
        everything = list(self.names)
        if config.kind == "adam":
            self.parts: list[torch.optim.Optimizer] = [
                torch.optim.Adam(everything, lr=rate, betas=betas, weight_decay=decay)
            ]
        elif config.kind == "adamw":
            self.parts = [torch.optim.AdamW(everything, lr=rate, betas=betas, weight_decay=decay)]
        else:
            matrices = [one for one in everything if is_hidden_matrix(self.names[one], one)]
            taken = set(map(id, matrices))
            others = [one for one in everything if id(one) not in taken]
            # Its steps are scaled to AdamW's size, so that one learning rate serves both.
            self.parts = [
                torch.optim.Muon(
                    matrices,
                    lr=rate,
                    momentum=config.beta1,
                    weight_decay=decay,
                    adjust_lr_fn="match_rms_adamw",
                ),
                torch.optim.AdamW(others, lr=rate, betas=betas, weight_decay=decay),
            ]

    def step(self, rate: float) -> None:
        """Change the weights by their gradients."""
        for part in self.parts:
            for group in part.param_groups:
                group["lr"] = rate
            part.step()

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for part in self.parts:
            part.zero_grad(set_to_none=True)

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
            part.state.clear()
        for name, value in tensors.items():
            owner, _, key = name.rpartition("/")
            part, parameter = owners[owner]
            # PyTorch keeps the count of steps on the CPU, everything else beside the parameter.
            place = "cpu" if key == "step" else parameter.device
            part.state[parameter][key] = value.clone().to(place)


def is_hidden_matrix(name: str, parameter: Tensor) -> bool:
    """Whether Muon is meant for it: a matrix between hidden states, not a table of vectors."""
    outside = ("embedding.", "output.", "core.positions.")
    return parameter.ndim == 2 and not name.startswith(outside)  # noqa: PLR2004
