"""The model as Transformers calls it: a `SequenceModel` inside a `PreTrainedModel`."""

from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from transformers import GenerationConfig, GenerationMixin, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast

from staircase_attention.huggingface.cache import StateCache, check_cache
from staircase_attention.huggingface.config import StaircaseConfig
from staircase_attention.huggingface.padding import is_padded_right, run_present, tokens_present
from staircase_attention.models import SequenceModel

IGNORED = -100
"""The label that Transformers leaves out of the loss."""

UNKNOWN = ("inputs_embeds", "position_ids", "output_attentions", "output_hidden_states")
"""What Transformers may ask for and these models do not have."""


class StaircaseForCausalLM(PreTrainedModel, GenerationMixin):  # type: ignore[no-untyped-call]
    """Any model of the family as a causal language model of Transformers."""

    config: StaircaseConfig
    config_class = StaircaseConfig
    main_input_name = "input_ids"
    supports_gradient_checkpointing = True
    accepts_loss_kwargs = True
    """Trainer divides by the number of labels in all micro-batches, and hands it to the loss."""
    _is_stateful = True
    # A state lies on one device, so a model does too.
    _no_split_modules = ["SequenceModel"]  # noqa: RUF012

    def __init__(self, config: StaircaseConfig) -> None:
        super().__init__(config)
        self.sequence_model = SequenceModel(
            vocab_size=config.vocab_size, core=config.core, schedule=config.make_schedule()
        )
        for parameter in self.sequence_model.parameters():
            if parameter.device.type != "meta":
                mark_initialised(parameter)
        self.post_init()  # type: ignore[no-untyped-call]

    def forward(
        self,
        input_ids: Int[Tensor, "batch time"] | None = None,
        attention_mask: Int[Tensor, "batch columns"] | None = None,
        past_key_values: StateCache | None = None,
        labels: Int[Tensor, "batch time"] | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        return_dict: bool | None = None,
        **others: Any,  # noqa: ANN401
    ) -> CausalLMOutputWithPast | tuple[Any, ...]:
        """Logits for every token; with labels the loss; with a cache, the state in it.

        Labels are shifted here, as everywhere in Transformers. A cache is given back where one
        came in, where it is asked for, and by default outside of training and without labels.
        """
        self._refuse_unknown(others)
        if input_ids is None:
            raise ValueError("these models take input_ids, got none; pass the tokens' numbers")
        if past_key_values is not None:
            check_cache(past_key_values)
        if use_cache is None:
            use_cache = self.config.use_cache and not self.training and labels is None
        cache = StateCache() if past_key_values is None and use_cache else past_key_values
        present = tokens_present(attention_mask, input_ids)
        logits = self._run(input_ids, present, cache)
        loss = None
        if labels is not None:
            labels = labels if present is None else without_guesses_of_pads(labels, present)
            loss = self.loss_function(
                logits=logits, labels=labels, vocab_size=logits.shape[-1], **others
            )
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        output = CausalLMOutputWithPast(
            loss=loss,
            logits=logits[:, kept],  # type: ignore[arg-type]
            past_key_values=cache,
        )
        if return_dict is None:
            return_dict = self.config.return_dict
        return output if return_dict else output.to_tuple()

    def _run(
        self,
        tokens: Int[Tensor, "batch time"],
        present: Bool[Tensor, "batch time"] | None,
        cache: StateCache | None,
    ) -> Float[Tensor, "batch time vocab"]:
        model, state = self.sequence_model, None if cache is None else cache.state
        logits: Tensor
        if present is None:
            logits, after = model(tokens, state)
        elif cache is None and is_padded_right(present):
            # What comes after a row's end changes nothing before it, and no state is kept.
            logits, after = model(tokens.masked_fill(~present, 0), state)
        else:
            logits, after = run_present(model, tokens, present, state)
        if cache is not None:
            cache.advance(after, tokens.shape[1])
        return logits

    def _refuse_unknown(self, others: dict[str, Any]) -> None:
        wishes = {"output_hidden_states": self.config.output_hidden_states} | others
        for name in UNKNOWN:
            if wishes.get(name) is not None and wishes[name] is not False:
                raise ValueError(
                    "these models take input_ids and give loss, logits and past_key_values, "
                    f"got {name}; leave it out"
                )

    @property
    def gradient_checkpointing(self) -> bool:
        """Whether activations are computed again in the backward pass."""
        return self.sequence_model.recompute

    @gradient_checkpointing.setter
    def gradient_checkpointing(self, enable: bool) -> None:
        self.sequence_model.recompute = enable

    def get_input_embeddings(self) -> nn.Module:
        """The vectors of the symbols."""
        return self.sequence_model.embedding

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Take others, for another number of symbols."""
        assert isinstance(value, nn.Embedding)
        self.sequence_model.embedding = value
        self.sequence_model.vocab_size = value.num_embeddings

    def get_output_embeddings(self) -> nn.Module:
        """The projection onto the symbols."""
        return self.sequence_model.output

    def set_output_embeddings(self, new_embeddings: nn.Linear) -> None:
        """Take another, for another number of symbols."""
        self.sequence_model.output = new_embeddings
        self.sequence_model.output_size = new_embeddings.out_features

    @torch.no_grad()
    def initialize_weights(self) -> None:
        """Give what a checkpoint lacks the numbers that it would have in a new model."""
        lacking = {
            name: parameter
            for name, parameter in self.sequence_model.named_parameters()
            if not getattr(parameter, "_is_hf_initialized", False)
        }
        if lacking:
            fresh = dict(type(self)(self.config).sequence_model.named_parameters())
            for name, parameter in lacking.items():
                mark_initialised(parameter.copy_(fresh[name]))

    def _init_weights(self, module: nn.Module) -> None:
        """Leave a module as its own constructor made it."""

    def prepare_inputs_for_generation(  # type: ignore[override]
        self,
        input_ids: Int[Tensor, "batch time"],
        next_sequence_length: int | None = None,
        **kwargs: Any,  # noqa: ANN401
    ) -> dict[str, Any]:
        """What the next forward gets; the tokens that the cache has seen are left out of it."""
        if next_sequence_length is not None:
            # Transformers would take none for all, and feed again what the state has had.
            if next_sequence_length < 1:
                raise ValueError(
                    "generation needs a token that the cache has not seen, "
                    f"got {input_ids.shape[1]} tokens with a cache of "
                    f"{input_ids.shape[1] - next_sequence_length}; "
                    "pass the whole sequence with new tokens at its end, or a mask that covers it"
                )
            kwargs["next_sequence_length"] = next_sequence_length
        inputs: dict[str, Any] = super().prepare_inputs_for_generation(  # type: ignore[misc]
            input_ids,  # type: ignore[arg-type]
            **kwargs,
        )
        return inputs

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        return False

    def _prepare_cache_for_generation(  # type: ignore[override]
        self,
        generation_config: GenerationConfig,
        model_kwargs: dict[str, Any],
        *others: Any,  # noqa: ANN401
        **named: Any,  # noqa: ANN401
    ) -> None:
        """Begin with an empty state, where the user brings none."""
        super()._prepare_cache_for_generation(  # type: ignore[misc]
            generation_config, model_kwargs, *others, **named
        )
        if generation_config.use_cache and model_kwargs.get("past_key_values") is None:
            model_kwargs["past_key_values"] = StateCache()


def without_guesses_of_pads(
    labels: Int[Tensor, "batch time"], present: Bool[Tensor, "batch time"]
) -> Int[Tensor, "batch time"]:
    """The labels, less those that would be predicted from a pad.

    >>> labels, present = torch.tensor([[-100, 5, 6]]), torch.tensor([[False, True, True]])
    >>> without_guesses_of_pads(labels, present)
    tensor([[-100, -100,    6]])
    """
    first = labels[:, :1]
    rest = labels[:, 1:].masked_fill(~present[:, :-1].to(labels.device), IGNORED)
    return torch.cat([first, rest], dim=1)


def mark_initialised(parameter: Tensor) -> None:
    """Tell Transformers that these numbers are as they should be."""
    parameter._is_hf_initialized = True  # type: ignore[attr-defined]
