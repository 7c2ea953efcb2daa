"""Recurrence for an existing model: some of its layers become a core that a timetable drives.

Layers are those of Transformers, called as they are, so that adapters, hooks and dropout work. What
they would write to a cache of Transformers goes to the executor instead, without its positions.

Gates, one number per channel each, let the recurrence in. With e what entered it, h what the pass
before left, c what this pass computes, and x what a layer saw of a token in its last pass:

* a pass after the first begins with e + g (h - e), and leaves h + o (c - h);
* a cached token gives each layer the keys and values of x + k (c - x).

g and k are 0 at first: every pass computes what the model computed before, over what it sees. o is
1, or 0 where later passes of a chunk see fewer tokens than its first, as in a Staircase.
"""

import copy
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.models.auto import AutoConfig, AutoModelForCausalLM

from staircase_attention.attention import View
from staircase_attention.checks import check_choice, input_error
from staircase_attention.huggingface.config import StaircaseConfig, plain_schedule
from staircase_attention.huggingface.model import StaircaseForCausalLM
from staircase_attention.layers import Block, Core, CoreConfig, KeysValues, join
from staircase_attention.layers.positions import rotate
from staircase_attention.models import SequenceModel, Stream
from staircase_attention.schedules import Schedule

# Kinds of models whose layers have been tried.
FAMILIES = ("gpt2", "llama", "olmo", "olmo2", "qwen2", "qwen3")


class RecurrentConfig(StaircaseConfig):  # type: ignore[no-untyped-call]
    """An existing model's config, which of its layers recur, and the schedule."""

    model_type: ClassVar[str] = "staircase-recurrent"
    has_no_defaults_at_init: ClassVar[bool] = True

    def __init__(
        self,
        *,
        base: dict[str, Any],
        layers: Sequence[int],
        schedule: Schedule | dict[str, Any],
        **others: Any,  # noqa: ANN401
    ) -> None:
        check_choice(
            "the model_type of a model to be made recurrent", base.get("model_type"), FAMILIES
        )
        self.base, self.layers, self.schedule = base, list(layers), plain_schedule(schedule)
        self.vocab_size: int = others.pop("vocab_size", base["vocab_size"])
        original: Any = self.make_base()
        kinds = {*(getattr(original, "layer_types", None) or ())} - {"full_attention"}
        # Their angles depend on how long a text is, so that a cut would change them.
        positions = {(getattr(original, "rope_parameters", None) or {}).get("rope_type")}
        kinds |= positions & {"dynamic", "longrope"}
        if kinds:
            rule = "a model to be made recurrent must have full attention in every layer, and "
            rule += "positions that do not depend on the length of a text"
            raise input_error(rule, ", ".join(sorted(kinds)), "choose another model")
        self.width, self.num_heads = original.hidden_size, original.num_attention_heads
        self.num_layers, self.use_cache = original.num_hidden_layers, original.use_cache
        numbers = [0, *self.layers, self.num_layers]
        if len(numbers) != 4 or sorted(numbers) != numbers or numbers[1] == numbers[2]:  # noqa: PLR2004
            rule = f"layers must be (first, last), 0 <= first < last <= {self.num_layers}"
            raise input_error(rule, tuple(layers), "use for example (1, 3)")
        num_layers, made = numbers[2] - numbers[1], self.make_schedule()
        made.check_core(num_layers=num_layers)
        # A timetable must begin as the existing model.
        step = next(made.steps(range(made.period), num_layers=num_layers, order="window"))
        is_other = made.mixes_layers or made.shares_keys_values or len(step.layers) < num_layers
        is_other |= any(cell.cached == "input" for cell in step.cells)
        if is_other or not made.attends_self:
            rule = "an existing model needs a schedule whose passes go through all layers together "
            rule += "and whose tokens attend to themselves and are cached, by layer, after a pass"
            raise input_error(rule, repr(made), "use for example Staircase or CachedStaircase")
        for name in ("bos_token_id", "eos_token_id", "pad_token_id", "tie_word_embeddings"):
            others.setdefault(name, getattr(original, name, None))
        # Not the family's own, whose fields are a core's.
        PreTrainedConfig.__init__(self, **others)

    def make_base(self) -> PreTrainedConfig:
        """The existing model's config; its vocabulary may have grown since."""
        return AutoConfig.for_model(**copy.deepcopy(self.base) | {"vocab_size": self.vocab_size})


class Rotary:
    """Angles of an existing model, for places that all layers of a step share."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.places, self.turns = torch.empty(0), (torch.empty(0), torch.empty(0))

    def __call__(self, places: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
        """Cosine and sine, [1, places, size] each."""
        if self.places is not places:
            # What moves to the meta device cannot come back.
            module = copy.deepcopy(self.module) if like.is_meta else self.module
            self.places, self.turns = places, module.to(like.device)(like, places[None])
        return self.turns


class FoundError(Exception):
    """Ends a layer's computation when its keys and values are known."""


class Exchange:
    """Takes the place of a layer's cache: gives what is remembered, takes what is new."""

    def __init__(
        self, past: Sequence[KeysValues], turns: tuple[Tensor, Tensor] | None, *, stops: bool
    ) -> None:
        self.past, self.turns, self.stops = past, turns, stops
        self.num_past = sum(piece.num_tokens for piece in past)
        self.context: list[KeysValues] = []

    def update(self, keys: Tensor, values: Tensor, *_: object) -> tuple[Tensor, Tensor]:
        """All keys, at their places, and all values."""
        own, placed = keys, list(self.past)
        if self.turns is not None:
            # Both halves of a head turn by the same angles.
            turns = torch.stack(self.turns)[:, 0, :, : keys.shape[-1] // 2]
            cosine, sine = turns[:, self.num_past :]
            # They may be scaled, and are rounded: their squares need not add up to 1.
            back = torch.stack([cosine, -sine]) / (cosine**2 + sine**2)
            # OLMo's angles are float32 in a model of any dtype.
            own = rotate(keys, back).to(keys.dtype)
            if placed:
                earlier = join(placed)
                again = rotate(earlier.keys, turns[:, : self.num_past]).to(keys.dtype)
                placed = [earlier._replace(keys=again)]
        self.context = [join([*self.past, KeysValues(own, values)])]
        if self.stops:
            raise FoundError
        return join([*placed, KeysValues(keys, values)])


class Adopted(Block):
    """A layer of an existing model as a block."""

    def __init__(self, layer: nn.Module, config: Any, rotary: Rotary | None) -> None:  # noqa: ANN401
        super().__init__()
        self.layer, self.width = layer, config.hidden_size
        self.base_config, self.rotary = config, rotary

    def keys_values(self, hidden: Float[Tensor, "batch time width"]) -> KeysValues:
        """What the layer would write to its cache, at place 0."""
        nowhere = torch.zeros(hidden.shape[1], dtype=torch.int64, device=hidden.device)
        turns = self.rotary(nowhere, hidden) if self.rotary else None
        exchange = Exchange([], turns, stops=True)
        with suppress(FoundError):
            self._run(hidden, exchange, None)
        return exchange.context[0]

    def forward(
        self,
        hidden: Float[Tensor, "batch queries width"],
        past: Sequence[KeysValues],
        *,
        view: View,
        **_: Any,  # noqa: ANN401
    ) -> tuple[Float[Tensor, "batch queries width"], list[KeysValues]]:
        """As in `Block`: the layer, with a cache that gives the past."""
        turns = self.rotary(view.key_places, hidden) if self.rotary else None
        exchange = Exchange(past, turns, stops=False)
        hidden = self._run(hidden, exchange, self._mask(view, hidden.dtype))
        return hidden, exchange.context

    def _run(self, hidden: Tensor, exchange: Exchange, mask: Tensor | None) -> Tensor:
        # It would drop its cache; `recompute` does the same for the whole core.
        self.layer.gradient_checkpointing = False  # type: ignore[assignment]
        given: dict[str, Any] = {"attention_mask": mask, "past_key_values": exchange}
        if exchange.turns is not None:
            own = tuple(turn[:, exchange.num_past :] for turn in exchange.turns)
            given["position_embeddings"] = own
        made = self.layer(hidden, use_cache=True, **given)
        return made[0] if isinstance(made, tuple) else made  # type: ignore[no-any-return]

    def _mask(self, view: View, dtype: torch.dtype) -> Tensor | None:
        """What queries must not see, as the model's attention is told."""
        hidden, lowest = view.hidden, torch.finfo(dtype).min
        if hidden is not None and self.base_config._attn_implementation == "eager":
            return torch.zeros_like(hidden, dtype=dtype).masked_fill(hidden, lowest)
        # Without a mask queries see the keys up to their own number, which are all there are here.
        is_square = view.num_keys == view.num_distances == view.num_queries
        is_causal = is_square and view.first_visible is None
        if hidden is None or (is_causal and (view.span is None or view.span >= view.num_keys)):
            return None
        return ~hidden


class RecurrentCore(Core):
    """Layers of an existing model, whose passes after the first start with closed gates."""

    def __init__(
        self, config: CoreConfig, blocks: nn.ModuleList, schedule: Schedule, like: Tensor
    ) -> None:
        super().__init__(config, max_distance=1, blocks=blocks)
        self.injects = True
        gates = torch.zeros(3, config.width, dtype=like.dtype, device=like.device)
        # A window that moves with the steps leaves a chunk behind, pass by pass.
        gates[2] = schedule.attention_span is not None or not schedule.is_state_bounded
        self.gates = nn.Parameter(gates)
        """g, k and o."""

    def inject(self, hidden: Tensor, entered: Tensor) -> Tensor:
        """What a pass after the first begins with, e + g (h - e)."""
        return entered + self.gates[0] * (hidden - entered)

    def settle(self, before: Tensor, computed: Tensor) -> Tensor:
        """What it leaves, h + o (c - h)."""
        return before + self.gates[2] * (computed - before)

    def freeze(self, levels: Sequence[Float[Tensor, "batch time width"]]) -> list[KeysValues]:
        """For each layer, what it saw in the last pass, moved towards what came out."""
        return [
            block.keys_values(level + self.gates[1] * (levels[-1] - level))
            for block, level in zip(self.blocks, levels[:-1], strict=False)
        ]


class RecurrentModel(SequenceModel):
    """An existing model's parts, some layers in a recurrence; nothing is copied."""

    def __init__(
        self, model: PreTrainedModel, *, layers: Sequence[int], schedule: Schedule
    ) -> None:
        # Parts have other names in GPT-2.
        config: Any = model.config
        inner: Any = model.base_model
        check_choice("attn_implementation", config._attn_implementation, ("sdpa", "eager"))
        rotary = None
        if hasattr(inner, "rotary_emb"):
            # Made anew, since a model that is being loaded has no buffers yet.
            with torch.device("cpu"):
                rotary = Rotary(type(inner.rotary_emb)(config))
        each = inner.h if hasattr(inner, "h") else inner.layers
        every = [Adopted(layer, config, rotary) for layer in each]
        first, last = layers
        shape = CoreConfig(
            width=config.hidden_size,
            num_layers=last - first,
            num_heads=1,
            num_prelude_layers=first,
            num_coda_layers=len(every) - last,
        )
        blocks = nn.ModuleList([*every[first:last], *every[:first], *every[last:]])
        embedding: Any = model.get_input_embeddings()
        core = RecurrentCore(shape, blocks, schedule, embedding.weight)
        with torch.device("meta"):
            super().__init__(vocab_size=config.vocab_size, core=core, schedule=schedule)
        self.embedding = embedding
        self.output_norm = inner.ln_f if hasattr(inner, "ln_f") else inner.norm
        self.output = model.get_output_embeddings()  # type: ignore[no-untyped-call]
        # Layers outside of the recurrence see what they saw before.
        self.outside_span = config.max_position_embeddings
        self.learned_positions: nn.Embedding | None = getattr(inner, "wpe", None)
        self.embedding_dropout: nn.Module = getattr(inner, "drop", nn.Identity())
        self.train(model.training)

    def embed(self, tokens: Tensor, stream: Stream) -> Float[Tensor, "rows time width"]:
        """With learned positions, counted from each row's first token, where the model has them."""
        embedded = super().embed(tokens, stream)
        if self.learned_positions is None:
            return embedded
        stop, most = stream.position + tokens.shape[1], self.learned_positions.num_embeddings
        if (longest := stop - min(stream.starts)) > most:
            rule = f"this model has learned positions for {most:,} tokens of a stream"
            raise input_error(rule, f"{longest:,}", "restart it, or cut the text")
        starts = torch.tensor(stream.starts, device=tokens.device)
        places = torch.arange(stream.position, stop, device=tokens.device) - starts[:, None]
        placed: Tensor = self.embedding_dropout(embedded + self.learned_positions(places))
        return placed


class RecurrentForCausalLM(StaircaseForCausalLM):  # type: ignore[no-untyped-call]
    """An existing causal language model with a recurrence in its middle."""

    config: RecurrentConfig
    config_class = RecurrentConfig  # type: ignore[assignment]
    _no_split_modules = ["RecurrentModel"]  # noqa: RUF012
    _supports_sdpa = True
    _tied_weights_keys = {  # noqa: RUF012
        "sequence_model.output.weight": "sequence_model.embedding.weight"
    }

    def make_model(self, config: StaircaseConfig) -> SequenceModel:
        """The existing model, by its config, and its parts."""
        assert isinstance(config, RecurrentConfig)
        base = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
            config.make_base(), attn_implementation=config._attn_implementation
        )
        return RecurrentModel(base, layers=config.layers, schedule=config.make_schedule())


def recurrent(
    model: PreTrainedModel, *, layers: Sequence[int], schedule: Schedule
) -> RecurrentForCausalLM:
    """The same model, with the same weights, whose layers first to last - 1 recur.

    Layers before are a prelude, those after a coda: a token goes through each of them once. As its
    gates begin, it computes what the model did, as far as the schedule lets tokens see.
    """
    given: Any = model
    if not isinstance(model, PreTrainedModel) or given.get_output_embeddings() is None:
        rule = "a model to be made recurrent must be a causal language model of Transformers"
        remedy = "load it with AutoModelForCausalLM.from_pretrained"
        raise input_error(rule, type(model).__name__, remedy)
    config = RecurrentConfig(
        base=model.config.to_dict(),
        layers=layers,
        schedule=schedule,
        dtype=model.dtype,
        attn_implementation=model.config._attn_implementation,
    )
    parts = RecurrentModel(model, layers=layers, schedule=schedule)
    wrapped = RecurrentForCausalLM.around(parts, config)
    wrapped.generation_config = copy.deepcopy(model.generation_config)
    return wrapped
