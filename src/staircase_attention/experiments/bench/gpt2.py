"""A GPT-2 of Hugging Face Transformers, updated as a user of that library would."""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from staircase_attention.batches import Batch
from staircase_attention.evaluation import autocast
from staircase_attention.training import FamilyModel
from staircase_attention.training.build import precision_of

if TYPE_CHECKING:
    from staircase_attention.experiments.bench.subject import Subject


def gpt2_options(subject: "Subject") -> dict[str, Any]:
    """What GPT2Config is given: the sizes of the subject's recipe."""
    model = subject.recipe.model
    assert isinstance(model, FamilyModel)
    return {
        "vocab_size": subject.num_inputs,
        "n_positions": subject.recipe.training.segment_length,
        "n_embd": model.core.width,
        "n_layer": model.core.num_layers,
        "n_head": model.core.num_heads,
        "n_inner": model.core.inner_width,
        "resid_pdrop": model.core.dropout,
        "attn_pdrop": model.core.dropout,
        "embd_pdrop": model.core.embedding_dropout,
        "bos_token_id": 0,
        "eos_token_id": 0,
        "use_cache": False,
        "attn_implementation": "sdpa",
    }


def import_gpt2() -> None:
    """Import the library beforehand, so that the first update is not charged for it."""
    import transformers.models.gpt2.modeling_gpt2  # noqa: F401


class GPT2Learner:
    """Model and optimiser; every segment stands alone, as GPT-2 carries no state."""

    def __init__(self, subject: "Subject", device: torch.device) -> None:
        from transformers import GPT2Config, GPT2LMHeadModel

        config = GPT2Config(**gpt2_options(subject))
        model: nn.Module = GPT2LMHeadModel(config)  # type: ignore[no-untyped-call]
        self.model = model.to(device).train()
        self.device, self.recipe = device, subject.recipe
        options = subject.recipe.training.optimizer
        self.clip = float("inf") if options.gradient_clip is None else options.gradient_clip
        self.optimizer = torch.optim.Adam(
            self.model.parameters(),
            lr=options.learning_rate,
            betas=(options.beta1, options.beta2),
            fused=True,
        )

    def update(self, batch: Batch, *, rate: float) -> None:
        """Forward, backward, clip, step; nothing is read back, so that the GPU never waits."""
        self.optimizer.zero_grad(set_to_none=True)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        torch.autograd.backward(self._loss(batch))
        nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        self.optimizer.step()

    def _loss(self, batch: Batch) -> Tensor:
        inputs, targets = (
            torch.from_numpy(array).to(self.device) for array in (batch.inputs, batch.targets)
        )
        with autocast(self.device, precision_of(self.recipe)):
            logits: Tensor = self.model(input_ids=inputs).logits
        return functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def gpt2_flops(subject: "Subject") -> int:
    """Forward operations a segment, counted as for the family: masked scores count as well."""
    options = gpt2_options(subject)
    width, length = options["n_embd"], options["n_positions"]
    layer = 2 * width * (4 * width + 2 * options["n_inner"]) + 4 * width * length
    output = 2 * width * options["vocab_size"]
    return int(length * (options["n_layer"] * layer + output))
