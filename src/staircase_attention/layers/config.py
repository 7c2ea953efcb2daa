"""The shape of a Transformer core."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from staircase_attention.checks import check_fields, input_error
from staircase_attention.schedules import Depth

# Numbers that an error suggests.
EXAMPLES = {
    "width": 512,
    "num_layers": 8,
    "num_heads": 8,
    "feed_forward_width": 2048,
    "max_distance": 256,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class CoreConfig:
    """A Transformer core: everything that is the same whatever the schedule.

    The defaults are the paper's core.
    """

    width: int
    """Size of a token's vector between layers."""
    num_layers: int
    """L: layers that recur."""
    num_heads: int
    """Attention heads per layer; the width is shared out among them."""
    feed_forward_width: int | None = None
    """Size inside the feed-forward sublayer; None: 4 x width, or 8/3 x width for swiglu."""
    dropout: float = field(default=0.0, metadata={"below": 1})
    """Probability of dropping a unit inside the feed-forward sublayer, and an attention weight."""
    attention_dropout: float | None = field(default=None, metadata={"below": 1})
    """Probability of dropping an attention weight; None: as `dropout`. On a GPU it is the dear part
    of dropout."""
    embedding_dropout: float = field(default=0.0, metadata={"below": 1})
    """Probability of dropping an element of a token's embedding."""
    positions: Literal["relative", "rotary"] = "relative"
    """How it knows distances: a learned table after Shaw et al., or rotary angles."""
    max_distance: int | None = None
    """Rows of the relative table; None: as many as the schedule reaches back."""
    norm: Literal["layer", "rms"] = "layer"
    """LayerNorm or RMSNorm."""
    feed_forward: Literal["relu", "gelu", "swiglu"] = "relu"
    """W2 relu(W1 x), W2 gelu(W1 x), or W2 (silu(W0 x) * W1 x)."""
    num_key_value_heads: int | None = None
    """Heads of keys and values, each shared by as many query heads; None: num_heads."""
    qk_norm: bool = False
    """Whether the queries and keys of every head are normed, before positions are applied."""
    bias: bool = True
    """Whether feed-forward sublayers and layer norms have biases; attention never has any."""
    num_prelude_layers: int = field(default=0, metadata={"minimum": 0})
    """Layers that a token goes through once, before it enters the recurrence."""
    num_coda_layers: int = field(default=0, metadata={"minimum": 0})
    """Layers that a token goes through once, after it has left the recurrence."""
    injection: Literal["none", "add", "normed", "gated"] = "none"
    """How every pass after the first sees what entered the recurrence: not at all, added to its
    state or to the norm of it, or in the share that a learned gate lets through."""
    reference: str | None = None
    """Blocks of your own as layers: path/to/file.py:ClassName or package.module:ClassName."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of these blocks, besides settings of the same names."""

    def __post_init__(self) -> None:
        check_fields(self, "CoreConfig.", examples=EXAMPLES)
        heads = f"width = {self.width} with num_heads = {self.num_heads}"
        if self.width % self.num_heads:
            rule = "CoreConfig.width must be a multiple of num_heads"
            raise input_error(rule, heads, "change one of them")
        if self.num_heads % self.key_value_heads:
            rule = "CoreConfig.num_heads must be a multiple of num_key_value_heads"
            given = f"{self.num_heads} with num_key_value_heads = {self.num_key_value_heads}"
            raise input_error(rule, given, "change one of them")
        if self.positions == "rotary" and self.head_size % 2:
            rule = "rotary positions need an even head size, width / num_heads"
            raise input_error(rule, heads, "change one of them, or use positions='relative'")
        if self.positions == "rotary" and self.max_distance is not None:
            rule = "CoreConfig.max_distance is for relative positions only"
            raise input_error(rule, self.max_distance, "leave it out")
        if self.options and self.reference is None:
            rule = "CoreConfig.options are for custom blocks"
            raise input_error(rule, dict(self.options), "leave them out, or give a reference")

    @property
    def is_papers(self) -> bool:
        """Whether it is the paper's core, in any size."""
        names = (*EXAMPLES, "dropout", "attention_dropout", "embedding_dropout")
        return self == CoreConfig(**{name: getattr(self, name) for name in names})

    @property
    def head_size(self) -> int:
        """Size of a query, key or value of one head."""
        return self.width // self.num_heads

    @property
    def inner_width(self) -> int:
        """Size inside the feed-forward sublayer."""
        if self.feed_forward_width is not None:
            return self.feed_forward_width
        # A third matrix: 8/3 x width has as many parameters, in multiples that products like.
        return -(-self.width // 6) * 16 if self.feed_forward == "swiglu" else 4 * self.width

    @property
    def weight_dropout(self) -> float:
        """Probability of dropping an attention weight."""
        return self.dropout if self.attention_dropout is None else self.attention_dropout

    @property
    def key_value_heads(self) -> int:
        """Heads of keys and values."""
        return self.num_heads if self.num_key_value_heads is None else self.num_key_value_heads

    @property
    def key_value_width(self) -> int:
        """Size of a token's keys, or values, in one layer."""
        return self.key_value_heads * self.head_size

    @property
    def depth(self) -> Depth:
        """How many layers recur, and how many come before and after."""
        return Depth(self.num_layers, self.num_prelude_layers, self.num_coda_layers)
