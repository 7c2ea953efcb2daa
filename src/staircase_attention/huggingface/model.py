"""The model for Transformers: a `SequenceModel` inside a `PreTrainedModel`.

Rows of different lengths may be in one batch. Padding inside a row would shift all later chunks. So
a masked token is treated as absent: every row gets the logits and the state that it would get
alone.
"""

from collections import deque
from typing import Any, Self, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from transformers import GenerationConfig, GenerationMixin, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.utils.generic import can_return_tuple

from staircase_attention.checks import input_error
from staircase_attention.generation.prompts import prefill
from staircase_attention.generation.stepper import accelerate
from staircase_attention.huggingface.cache import StateCache
from staircase_attention.huggingface.config import StaircaseConfig
from staircase_attention.inspect import Inspection
from staircase_attention.models import SequenceModel, State
from staircase_attention.models.executor import Watch

# The label that Transformers leaves out of the loss.
IGNORED = -100
# Calls that an assistant can take back, at least.
LEAST_CALLS = 64


class StaircaseForCausalLM(PreTrainedModel, GenerationMixin):  # type: ignore[no-untyped-call]
    """A model of the family as a causal language model of Transformers."""

    config: StaircaseConfig
    config_class = StaircaseConfig
    supports_gradient_checkpointing = True
    accepts_loss_kwargs = True
    """Trainer divides by the number of labels in all micro-batches, and passes it to the loss."""
    # A state is on one device, so the model is too.
    _no_split_modules = ["SequenceModel"]  # noqa: RUF012

    def __init__(self, config: StaircaseConfig) -> None:
        super().__init__(config)
        self.sequence_model = self.make_model(config)
        for parameter in self.sequence_model.parameters():
            # On the meta device there are no weights yet: a checkpoint will bring them.
            if parameter.device.type != "meta":
                mark_initialised(parameter)
        self.post_init()  # type: ignore[no-untyped-call]

    @classmethod
    def around(cls, model: SequenceModel, config: StaircaseConfig) -> Self:
        """This model with its weights, of which nothing is copied."""
        # No second set of weights is made: those of the model take their place.
        with torch.device("meta"):
            wrapped = cls(config)
        for parameter in model.parameters():
            mark_initialised(parameter)
        wrapped.sequence_model, wrapped.training = model, model.training
        return wrapped

    def make_model(self, config: StaircaseConfig) -> SequenceModel:
        """What runs inside."""
        return SequenceModel(
            vocab_size=config.vocab_size, core=config.core, schedule=config.make_schedule()
        )

    @can_return_tuple  # type: ignore[untyped-decorator]
    def forward(
        self,
        input_ids: Int[Tensor, "batch time"] | None = None,
        attention_mask: Int[Tensor, "batch columns"] | None = None,
        past_key_values: StateCache | None = None,
        inputs_embeds: Float[Tensor, "batch time width"] | None = None,
        labels: Int[Tensor, "batch time"] | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        **others: Any,  # noqa: ANN401
    ) -> CausalLMOutputWithPast:
        """Logits for every token; with labels the loss; with a cache, the new state in it.

        Labels are shifted here, as everywhere in Transformers. The output has a cache if one was
        passed, if `use_cache` asks for it, and by default outside of training without labels.
        Hidden states are the embeddings, then what each layer gives at each pass, in order, the
        last one normed; attentions are those of each layer at each pass (see `Inspection`).
        """
        if others.get("position_ids") is not None:
            raise input_error("positions follow from the state", "position_ids", "leave it out")
        if (input_ids is None) == (inputs_embeds is None):
            found = "neither" if input_ids is None else "both"
            raise input_error("a model takes input_ids or inputs_embeds", found, "pass one of them")
        tokens = inputs_embeds if input_ids is None else input_ids
        assert tokens is not None
        if past_key_values is not None and not isinstance(past_key_values, StateCache):
            raise input_error(
                "past_key_values must be a StateCache",
                type(past_key_values).__name__,
                "pass the cache that this model returned, StateCache(state), or nothing",
            )
        if use_cache is None:
            use_cache = self.config.use_cache and not self.training and labels is None
        # A cache that was passed is always filled, even where `use_cache` is False.
        cache = StateCache() if past_key_values is None and use_cache else past_key_values
        present = tokens_present(attention_mask, tokens)
        if output_hidden_states is None:
            output_hidden_states = self.config.output_hidden_states
        if output_attentions is None:
            output_attentions = self.config.output_attentions
        seen = Inspection(self.sequence_model, tokens.shape[1])
        is_watched = output_hidden_states or output_attentions
        logits = self._run(tokens, present, cache, seen.watch if is_watched else None)
        if present is not None and labels is None:
            logits = carried(logits, present)
        loss = None
        if labels is not None:
            labels = labels if present is None else without_padding(labels, present)
            loss = self.loss_function(
                logits=logits, labels=labels, vocab_size=logits.shape[-1], **others
            )
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        return CausalLMOutputWithPast(
            loss=loss,
            logits=logits[:, kept],  # type: ignore[arg-type]
            past_key_values=cache,
            hidden_states=self._hidden_states(seen) if output_hidden_states else None,  # type: ignore[arg-type]
            attentions=tuple(seen.attention(*at) for at in seen.path)  # type: ignore[misc]
            if output_attentions
            else None,
        )

    def _hidden_states(self, seen: Inspection) -> tuple[Tensor, ...]:
        *before, last = (seen.hidden(*at) for at in seen.path)
        return seen.inputs(*seen.path[0]), *before, self.sequence_model.output_norm(last)

    def _run(
        self,
        tokens: Tensor,
        present: Bool[Tensor, "batch time"] | None,
        cache: StateCache | None,
        watch: Watch | None,
    ) -> Float[Tensor, "batch time vocab"]:
        model = self.sequence_model
        # Padded on the right: no token comes after padding.
        if cache is None and present is not None and (present[:, :-1] >= present[:, 1:]).all():
            # Tokens after a row's end change nothing before it, and no state is kept.
            absent = ~present if tokens.dim() == present.dim() else ~present[..., None]
            return model(tokens.masked_fill(absent, 0), watch=watch)[0]  # type: ignore[no-any-return]
        if watch and present is not None:
            rule = "hidden states and attentions need rows without padding on the left"
            raise input_error(rule, "padding", "leave it out, or pad right without a cache")
        state = None if cache is None else cache.state

        def run(num_columns: int) -> tuple[Tensor, State]:
            some = tokens[:, :num_columns]
            if present is None:
                return model(some, state, watch=watch)  # type: ignore[no-any-return]
            return run_present(model, some, present[:, :num_columns], state)

        logits, after = run(tokens.shape[1])
        watch = None  # a cropped cache runs again
        if cache is not None:
            # With gradients the state before would keep its graph alive.
            run_again = None if torch.is_grad_enabled() else lambda number: run(number)[1]
            cache.advance(after, tokens.shape[1], run_again)
        return logits

    @property
    def gradient_checkpointing(self) -> bool:
        """Whether activations are computed again in the backward pass."""
        return self.sequence_model.recompute

    @gradient_checkpointing.setter
    def gradient_checkpointing(self, enable: bool) -> None:
        self.sequence_model.recompute = enable

    def get_input_embeddings(self) -> nn.Module:
        """The token embedding."""
        return self.sequence_model.embedding

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Replace the token embedding, for another vocabulary size."""
        assert isinstance(value, nn.Embedding)
        self.sequence_model.embedding = value
        self.sequence_model.vocab_size = value.num_embeddings

    def get_output_embeddings(self) -> nn.Module:
        """The output projection."""
        return self.sequence_model.output

    def set_output_embeddings(self, new_embeddings: nn.Linear) -> None:
        """Replace the output projection, for another vocabulary size."""
        self.sequence_model.output = new_embeddings
        self.sequence_model.output_size = new_embeddings.out_features

    @torch.no_grad()
    def initialize_weights(self) -> None:
        """Initialise the weights that a checkpoint lacks, as in a new model."""
        missing = {
            name: parameter
            for name, parameter in self.sequence_model.named_parameters()
            # On the meta device there is nothing to initialise.
            if not (parameter.is_meta or getattr(parameter, "_is_hf_initialized", False))
        }
        if missing:
            new = dict(type(self)(self.config).sequence_model.named_parameters())
            for name, parameter in missing.items():
                mark_initialised(parameter.copy_(new[name]))

    def _init_weights(self, module: nn.Module) -> None:
        """Do nothing: every module initialises itself."""

    def prepare_inputs_for_generation(  # type: ignore[override]
        self,
        input_ids: Int[Tensor, "batch time"],
        next_sequence_length: int | None = None,
        # Transformers looks for this name before it takes vectors.
        inputs_embeds: Tensor | None = None,
        **kwargs: Any,  # noqa: ANN401
    ) -> dict[str, Any]:
        """The arguments of the next forward, without the tokens that the cache has seen."""
        if next_sequence_length is not None:
            # Transformers would feed all tokens again, which the state has seen already.
            if next_sequence_length < 1:
                num_tokens = input_ids.shape[1]
                raise input_error(
                    "generation needs a token that the cache has not seen",
                    f"{num_tokens} tokens with a cache of {num_tokens - next_sequence_length}",
                    "pass the whole sequence with new tokens at its end, or a mask that covers it",
                )
            kwargs["next_sequence_length"] = next_sequence_length
        return super().prepare_inputs_for_generation(  # type: ignore[misc,no-any-return]
            input_ids,  # type: ignore[arg-type]
            inputs_embeds=inputs_embeds,  # type: ignore[arg-type]
            **kwargs,
        )

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
        """Start from an empty state unless the user passes one."""
        # `generate` prepares its cache once, before the first token.
        accelerate(self.sequence_model)
        super()._prepare_cache_for_generation(  # type: ignore[misc]
            generation_config, model_kwargs, *others, **named
        )
        if generation_config.use_cache and model_kwargs.get("past_key_values") is None:
            model_kwargs["past_key_values"] = StateCache()
        cache = model_kwargs.get("past_key_values")
        if generation_config.is_assistant and cache is not None:
            # Drafts that are not accepted are forgotten, all those of a round at most.
            num_calls = max(LEAST_CALLS, generation_config.max_new_tokens or 0)
            cache.calls = deque(cache.calls, num_calls)


def tokens_present(
    attention_mask: Tensor | None, tokens: Tensor
) -> Bool[Tensor, "batch time"] | None:
    """Which tokens, or vectors of tokens, are present; None if all are."""
    if attention_mask is None or tokens.dim() < 2:  # noqa: PLR2004
        return None
    batch, time = tokens.shape[:2]
    # A mask may also cover the tokens of earlier calls.
    if attention_mask.dim() != 2 or len(attention_mask) != batch or attention_mask.shape[1] < time:  # noqa: PLR2004
        rule = "attention_mask must be batch x time, with at least one column per token"
        received = f"shape {tuple(attention_mask.shape)} for tokens of {tuple(tokens.shape)}"
        raise input_error(rule, received, "pass the mask that the tokeniser returned")
    present = attention_mask[:, attention_mask.shape[1] - time :].to(tokens.device) != 0
    return None if bool(present.all()) else present


def run_present(
    model: SequenceModel, tokens: Tensor, present: Bool[Tensor, "batch time"], state: State | None
) -> tuple[Float[Tensor, "batch time output"], State]:
    """Run the present tokens; the logits of absent ones are zero."""
    rows = [row[here] for row, here in zip(tokens, present, strict=True)]
    found: list[list[Tensor]] = [[] for _ in rows]
    if state is None or not any(state.lengths):
        # In as few streams as possible, because each is run separately for every later token.
        after = cast(State, prefill(model, rows, keep=lambda row, part: found[row].append(part)))
    else:
        order: list[int] = []
        states: list[State] = []
        for length in sorted({len(row) for row in rows}):
            alike = [number for number, row in enumerate(rows) if len(row) == length]
            several, later = model(torch.stack([rows[one] for one in alike]), state.select(alike))
            for number, part in zip(alike, several, strict=True):
                found[number].append(part)
            order += alike
            states.append(later)
        after = State.join(states).select(sorted(range(len(order)), key=order.__getitem__))
    whole = model.output.weight.new_zeros(*present.shape, model.output_size)
    # Where all tokens are absent there are no logits to put in.
    parts = [whole.new_zeros(0, model.output_size), *(part for row in found for part in row)]
    return whole.index_put((present,), torch.cat(parts)), after


def carried(
    logits: Float[Tensor, "batch time vocab"], present: Bool[Tensor, "batch time"]
) -> Float[Tensor, "batch time vocab"]:
    """The logits of each row's latest present token, also at the padding after it.

    `generate` reads the last column; with padding on the right that is not the last token.
    """
    columns = torch.arange(present.shape[1], device=present.device)
    latest = torch.where(present, columns, -1).cummax(1).values[..., None]
    # Before the first token there are no logits.
    return logits.gather(1, latest.clamp(min=0).expand_as(logits)).masked_fill(latest < 0, 0)


def without_padding(
    labels: Int[Tensor, "batch time"], present: Bool[Tensor, "batch time"]
) -> Int[Tensor, "batch time"]:
    """The labels, without those that would be predicted from padding.

    >>> labels, present = torch.tensor([[-100, 5, 6]]), torch.tensor([[False, True, True]])
    >>> without_padding(labels, present)
    tensor([[-100, -100,    6]])
    """
    rest = labels[:, 1:].masked_fill(~present[:, :-1].to(labels.device), IGNORED)
    return torch.cat([labels[:, :1], rest], dim=1)


def mark_initialised(parameter: Tensor) -> None:
    """Mark a parameter so that Transformers does not initialise it again."""
    parameter._is_hf_initialized = True  # type: ignore[attr-defined]
