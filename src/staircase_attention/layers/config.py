"""The shape of a Transformer core."""

from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from staircase_attention.checks import check_choice, check_integer, check_number, input_error

# How a core knows distances: a learned table after Shaw et al., or rotary angles.
Positions = Literal["relative", "rotary"]


@dataclass(frozen=True, kw_only=True, slots=True)
class CoreConfig:
    """A Transformer core: everything that is the same whatever the schedule."""

    width: int
    """Size of a token's vector between layers."""
    num_layers: int
    """L: layers of the core."""
    num_heads: int
    """Attention heads per layer; the width is shared out among them."""
    feed_forward_width: int | None = None
    """Size inside the feed-forward sublayer; None: 4 x width."""
    dropout: float = 0.0
    """Probability of dropping an attention weight, and a unit after the ReLU."""
    embedding_dropout: float = 0.0
    """Probability of dropping an element of a token's embedding."""
    positions: Positions = "relative"
    """A learned table of distances, or rotary angles."""
    max_distance: int | None = None
    """Rows of the relative table; None: as many as the schedule reaches back."""

    def __post_init__(self) -> None:
        check_integer("CoreConfig.width", self.width, minimum=1, example=512)
        check_integer("CoreConfig.num_layers", self.num_layers, minimum=1, example=8)
        check_integer("CoreConfig.num_heads", self.num_heads, minimum=1, example=8)
        for name, example in (("feed_forward_width", 2048), ("max_distance", 256)):
            if getattr(self, name) is not None:
                check_integer(f"CoreConfig.{name}", getattr(self, name), minimum=1, example=example)
        for name in ("dropout", "embedding_dropout"):
            value = getattr(self, name)
            check_number(f"CoreConfig.{name}", value, minimum=0, below=1, example=0.1)
        check_choice("CoreConfig.positions", self.positions, get_args(Positions))
        heads = f"width = {self.width} with num_heads = {self.num_heads}"
        if self.width % self.num_heads:
            rule = "CoreConfig.width must be a multiple of num_heads"
            raise input_error(rule, heads, "change one of them")
        if self.positions == "rotary" and self.head_size % 2:
            rule = "rotary positions need an even head size, width / num_heads"
            raise input_error(rule, heads, "change one of them, or use positions='relative'")
        if self.positions == "rotary" and self.max_distance is not None:
            rule = "CoreConfig.max_distance is for relative positions only"
            raise input_error(rule, self.max_distance, "leave it out")

    @property
    def head_size(self) -> int:
        """Size of a query, key or value of one head."""
        return self.width // self.num_heads

    @property
    def inner_width(self) -> int:
        """Size inside the feed-forward sublayer."""
        return 4 * self.width if self.feed_forward_width is None else self.feed_forward_width

    def to_dict(self) -> dict[str, Any]:
        """The config as plain data."""
        return asdict(self)
