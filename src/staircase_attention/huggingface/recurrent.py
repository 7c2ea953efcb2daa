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
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from staircase_attention.attention import View
from staircase_attention.checks import check_choice, check_integer, input_error
from staircase_attention.huggingface.config import StaircaseConfig, plain_schedule
from staircase_attention.huggingface.model import StaircaseForCausalLM, mark_initialised
from staircase_attention.layers import Block, Core, CoreConfig, KeysValues, join
from staircase_attention.models import SequenceModel, Stream
from staircase_attention.schedules import Ledger, Schedule

# Kinds of models whose layers have been tried, all with one kind of attention.
FAMILIES = ("gpt2", "llama", "olmo", "olmo2", "qwen2", "qwen3")
# Implementations of attention whose masks are known.
ATTENTION = ("sdpa", "eager")


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
        check_choice("the kind of a model", base.get("model_type"), FAMILIES)
        self.base, self.layers, self.schedule = base, list(layers), plain_schedule(schedule)
        original = self.make_base()
        kinds = {*(getattr(original, "layer_types", None) or ())} - {"full_attention"}
        if kinds:
            rule = "a model to be made recurrent must have full attention in every layer"
            raise input_error(rule, ", ".join(sorted(kinds)), "choose another model")
        self.width, self.num_heads = original.hidden_size, original.num_attention_heads
        self.num_layers = original.num_hidden_layers
        first, last = self.layers
        check_integer("the first of layers", first, minimum=0, maximum=last - 1, example=0)
        check_integer("the end of layers", last, minimum=1, maximum=self.num_layers, example=1)
        check_schedule(self.make_schedule(), last - first)
        names = ("vocab_size", "use_cache", "bos_token_id", "eos_token_id", "pad_token_id")
        known = {name: getattr(original, name, None) for name in (*names, "tie_word_embeddings")}
        self.vocab_size, self.use_cache = known.pop("vocab_size"), known.pop("use_cache")
        # Not the family's own, whose fields are a core's.
        PreTrainedConfig.__init__(self, **known | others)

    def make_base(self) -> PreTrainedConfig:
        """The existing model's config; its vocabulary may have grown since."""
        changed = {"vocab_size": self.vocab_size} if hasattr(self, "vocab_size") else {}
        config: PreTrainedConfig = AutoConfig.for_model(**copy.deepcopy(self.base) | changed)
        return config


def check_schedule(schedule: Schedule, num_layers: int) -> None:
    """Refuse a timetable that does not begin as the existing model."""
    schedule.check_core(num_layers=num_layers)
    step = next(schedule.steps(range(schedule.period), num_layers=num_layers, order="window"))
    if (
        not schedule.attends_self
        or schedule.mixes_layers
        or schedule.shares_keys_values
        or len(step.layers) < num_layers
        or any(cell.cached == "input" for cell in step.cells)
    ):
        rule = "an existing model needs a schedule whose passes go through all layers together and "
        rule += "whose tokens attend to themselves and are cached, by layer, after a pass"
        raise input_error(rule, repr(schedule), "use for example Staircase or CachedStaircase")


def loses_sight(schedule: Schedule, num_layers: int) -> bool:
    """Whether a chunk's last pass sees fewer tokens before it than its first."""
    chunk = schedule.default_max_distance // schedule.period + 1
    tokens = range((chunk + 1) * schedule.period)
    steps = schedule.steps(tokens, num_layers=num_layers, order="window")
    seen = [
        min(part.start for part in (*step.frozen, held, step.tokens))
        for step, held in Ledger().follow(steps)
        if tokens[-1] in step.tokens
    ]
    return seen[-1] > seen[0]


class Places:
    """Rotary angles of an existing model, at the places of a view; none for other positions."""

    def __init__(self, rotary: nn.Module | None) -> None:
        self.rotary = rotary
        self._latest: tuple[object, tuple[Tensor, Tensor]] | None = None

    def turns(self, places: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
        """Cosine and sine, [1, places, size] each."""
        assert self.rotary is not None
        # What moves to the meta device cannot come back.
        rotary = copy.deepcopy(self.rotary) if like.is_meta else self.rotary
        cosine, sine = rotary.to(like.device)(like, places[None])
        return cosine, sine

    def of_keys(self, view: View, like: Tensor) -> tuple[Tensor, Tensor]:
        """Those of all keys of a view, which all layers of a step share."""
        if self._latest is None or self._latest[0] is not view:
            self._latest = view, self.turns(view.key_places, like)
        return self._latest[1]


def rotate(vectors: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Turn each pair (element j, element j + half), as models of Transformers do."""
    first, second = vectors.chunk(2, dim=-1)
    return vectors * cosine[:, None] + torch.cat([-second, first], dim=-1) * sine[:, None]


class Found(Exception):  # noqa: N818
    """Ends a layer's computation when its keys and values are known."""


class Exchange:
    """Takes the place of a layer's cache: gives what is remembered, takes what is new."""

    def __init__(
        self, past: Sequence[KeysValues], turns: tuple[Tensor, Tensor] | None, *, stops: bool
    ) -> None:
        self.past, self.turns, self.stops = past, turns, stops
        self.context: list[KeysValues] = []

    def update(self, keys: Tensor, values: Tensor, *_: object) -> tuple[Tensor, Tensor]:
        """All keys, at their places, and all values."""
        num_past = sum(piece.num_tokens for piece in self.past)
        plain = keys
        if self.turns is not None:
            cosine, sine = (turn[:, num_past:] for turn in self.turns)
            # Cosine and sine may be scaled, and are rounded: their squares need not add up to 1.
            plain = rotate(keys, cosine, -sine) / (cosine**2 + sine**2)[:, None]
        self.context = [join([*self.past, KeysValues(plain, values)])]
        if self.stops:
            raise Found
        if not num_past:
            return keys, values
        earlier = join(self.past)
        placed = earlier.keys
        if self.turns is not None:
            placed = rotate(placed, *(turn[:, :num_past] for turn in self.turns))
        return torch.cat([placed, keys], dim=2), torch.cat([earlier.values, values], dim=2)


class Adopted(Block):
    """A layer of an existing model as a block."""

    def __init__(self, layer: nn.Module, config: PreTrainedConfig, places: Places) -> None:
        super().__init__()
        self.layer, self.width = layer, config.hidden_size
        # Neither is this block's own.
        self.base_config, self.places = config, places

    def keys_values(self, hidden: Float[Tensor, "batch time width"]) -> KeysValues:
        """What the layer would write to its cache, at place 0."""
        turns = None
        if self.places.rotary is not None:
            nowhere = torch.zeros(hidden.shape[1], dtype=torch.int64, device=hidden.device)
            turns = self.places.turns(nowhere, hidden)
        exchange = Exchange([], turns, stops=True)
        try:
            self._run(hidden, exchange, turns, mask=None)
        except Found:
            return exchange.context[0]
        raise AssertionError("a layer without a cache")

    def forward(
        self,
        hidden: Float[Tensor, "batch queries width"],
        past: Sequence[KeysValues],
        *,
        view: View,
        **_: Any,  # noqa: ANN401
    ) -> tuple[Float[Tensor, "batch queries width"], list[KeysValues]]:
        """As in `Block`: the layer, with a cache that gives the past."""
        turns = own = None
        if self.places.rotary is not None:
            turns = self.places.of_keys(view, hidden)
            own = tuple(turn[:, -view.num_queries :] for turn in turns)
        exchange = Exchange(past, turns, stops=False)
        hidden = self._run(hidden, exchange, own, mask=self._mask(view, hidden.dtype))
        return hidden, exchange.context

    def _run(
        self, hidden: Tensor, exchange: Exchange, turns: object, mask: Tensor | None
    ) -> Tensor:
        # It would drop its cache; `recompute` does the same for the whole core.
        self.layer.gradient_checkpointing = False
        given = {} if turns is None else {"position_embeddings": turns}
        made = self.layer(
            hidden, attention_mask=mask, past_key_values=exchange, use_cache=True, **given
        )
        return made[0] if isinstance(made, tuple) else made

    def _mask(self, view: View, dtype: torch.dtype) -> Tensor | None:
        """What queries must not see, as the model's attention is told."""
        kind, hidden = self.base_config._attn_implementation, view.hidden
        if kind == "eager":
            if hidden is None:
                return None
            lowest = torch.finfo(dtype).min
            return torch.zeros(hidden.shape, dtype=dtype, device=view.device).masked_fill(
                hidden, lowest
            )
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
        gates[2] = not loses_sight(schedule, config.num_layers)
        self.gates = nn.Parameter(gates)
        """g, k and o."""

    def inject(
        self,
        hidden: Float[Tensor, "batch time width"],
        entered: Float[Tensor, "batch time width"],
    ) -> Float[Tensor, "batch time width"]:
        """What a pass after the first begins with, e + g (h - e)."""
        return entered + self.gates[0] * (hidden - entered)

    def settle(
        self,
        before: Float[Tensor, "batch time width"],
        computed: Float[Tensor, "batch time width"],
    ) -> Float[Tensor, "batch time width"]:
        """What such a pass leaves, h + o (c - h)."""
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
        config, inner = model.config, model.base_model
        check_choice("attn_implementation", config._attn_implementation, ATTENTION)
        rotary = getattr(inner, "rotary_emb", None)
        if rotary is not None:
            # Made anew, since a model that is being loaded has no buffers yet.
            with torch.device("cpu"):
                rotary = type(rotary)(config)
        every = [Adopted(layer, config, Places(rotary)) for layer in _layers(inner)]
        for block in every:
            block.places = every[0].places
        (first, last), embedding = layers, model.get_input_embeddings()
        shape = CoreConfig(
            width=config.hidden_size,
            num_layers=last - first,
            num_heads=1,
            num_prelude_layers=first,
            num_coda_layers=len(every) - last,
        )
        blocks = nn.ModuleList([*every[first:last], *every[:first], *every[last:]])
        with torch.device("meta"):
            super().__init__(
                vocab_size=config.vocab_size,
                core=RecurrentCore(shape, blocks, schedule, embedding.weight),
                schedule=schedule,
            )
        self.embedding = embedding
        self.output_norm = inner.ln_f if hasattr(inner, "ln_f") else inner.norm
        self.output = model.get_output_embeddings()
        # Layers outside of the recurrence see what they saw before.
        self.outside_span = config.max_position_embeddings
        self.learned_positions = getattr(inner, "wpe", None)
        self.embedding_dropout = getattr(inner, "drop", None)
        self.train(model.training)

    def embed(self, tokens: Tensor, stream: Stream) -> Float[Tensor, "rows time width"]:
        """With learned positions, counted from each row's first token, where the model has them."""
        embedded = super().embed(tokens, stream)
        if self.learned_positions is None:
            return embedded
        starts = torch.tensor(stream.starts, device=tokens.device)
        stop, most = stream.position + tokens.shape[1], self.learned_positions.num_embeddings
        if stop - min(stream.starts) > most:
            rule = f"this model has learned positions for {most:,} tokens of a stream"
            raise input_error(rule, f"{stop - min(stream.starts):,}", "restart it, or cut the text")
        places = torch.arange(stream.position, stop, device=tokens.device) - starts[:, None]
        placed: Tensor = self.embedding_dropout(embedded + self.learned_positions(places))
        return placed


class RecurrentForCausalLM(StaircaseForCausalLM):
    """An existing causal language model with a recurrence in its middle."""

    config: RecurrentConfig
    config_class = RecurrentConfig
    _no_split_modules = ["RecurrentModel"]  # noqa: RUF012
    _supports_sdpa = True
    _tied_weights_keys = {  # noqa: RUF012
        "sequence_model.output.weight": "sequence_model.embedding.weight"
    }

    def make_model(self, config: StaircaseConfig) -> SequenceModel:
        """The existing model, by its config, and its parts."""
        assert isinstance(config, RecurrentConfig)
        kind = config._attn_implementation
        base = AutoModelForCausalLM.from_config(config.make_base(), attn_implementation=kind)
        return RecurrentModel(base, layers=config.layers, schedule=config.make_schedule())


def recurrent(
    model: PreTrainedModel, *, layers: Sequence[int], schedule: Schedule
) -> RecurrentForCausalLM:
    """The same model, with the same weights, whose layers first to last - 1 recur.

    Layers before are a prelude, those after a coda: a token goes through each of them once. With
    its new gates closed, as they begin, it computes what the model did, as far as the schedule lets
    tokens see.
    """
    if len(layers) != 2 or getattr(model.config, "model_type", None) not in FAMILIES:  # noqa: PLR2004
        rule = f"recurrent takes a model of {', '.join(FAMILIES)}, and layers=(first, last)"
        received = f"{type(model).__name__} and {tuple(layers)}"
        raise input_error(rule, received, "use for example layers=(4, 20)")
    config = RecurrentConfig(
        base=model.config.to_dict(),
        layers=layers,
        schedule=schedule,
        dtype=model.dtype,
        attn_implementation=model.config._attn_implementation,
    )
    with torch.device("meta"):
        wrapped = RecurrentForCausalLM(config)
    wrapped.sequence_model = RecurrentModel(model, layers=layers, schedule=schedule)
    for parameter in wrapped.sequence_model.parameters():
        mark_initialised(parameter)
    wrapped.generation_config = copy.deepcopy(model.generation_config)
    return wrapped.train(model.training)


def _layers(inner: nn.Module) -> nn.ModuleList:
    layers = inner.h if hasattr(inner, "h") else inner.layers
    assert isinstance(layers, nn.ModuleList)
    return layers
