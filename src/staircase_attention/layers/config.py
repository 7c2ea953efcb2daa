"""The shape of a Transformer core."""

from dataclasses import asdict, dataclass
from typing import Any, Literal

from staircase_attention.schedules.checks import require_choice, require_integer

Positions = Literal["relative", "rotary"]
"""How a core knows distances: a learned table after Shaw et al., or rotary angles."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CoreConfig:
    """A Transformer core: everything that is the same whatever the schedule."""

    width: int
    """Size of a token's vector between layers."""
    num_layers: int
    """L: layers of the core."""
    num_heads: int
    """Attention heads a layer; the width is shared out among them."""
    feed_forward_width: int | None = None
    """Size inside the feed-forward sublayer; 4 x width where it is left open."""
    dropout: float = 0.0
    """Probability of dropping an attention weight, and a unit after the ReLU."""
    embedding_dropout: float = 0.0
    """Probability of dropping an element of a token's embedding."""
    positions: Positions = "relative"
    """A learned table of distances, or rotary angles."""
    max_distance: int | None = None
    """Rows of the relative table; where it is left open, the schedule gives its own reach."""

    def __post_init__(self) -> None:
        require_integer(self, "width", at_least=1, remedy="give a size, as 512")
        require_integer(self, "num_layers", at_least=1, remedy="give a depth, as 8")
        require_integer(self, "num_heads", at_least=1, remedy="give a number, as 8")
        for name, example in (("feed_forward_width", 2048), ("max_distance", 256)):
            if getattr(self, name) is not None:
                remedy = f"leave it out or give a size, as {example}"
                require_integer(self, name, at_least=1, remedy=remedy)
        require_choice(self, "positions", ("relative", "rotary"))
        self._check_heads()
        for name in ("dropout", "embedding_dropout"):
            self._check_probability(name)

    def _check_heads(self) -> None:
        if self.width % self.num_heads:
            raise ValueError(
                "CoreConfig.width must be a multiple of num_heads, "
                f"got width = {self.width} with num_heads = {self.num_heads}; change one of them"
            )
        if self.positions == "rotary" and self.head_size % 2:
            raise ValueError(
                "rotary positions need an even head size, got width / num_heads = "
                f"{self.width} / {self.num_heads} = {self.head_size}; "
                "change one of them, or take positions='relative'"
            )
        if self.positions == "rotary" and self.max_distance is not None:
            raise ValueError(
                "CoreConfig.max_distance is the size of the relative table, which rotary positions "
                f"do not have, got {self.max_distance}; leave it out"
            )

    def _check_probability(self, name: str) -> None:
        value: Any = getattr(self, name)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise TypeError(
                f"CoreConfig.{name} must be a number, got {value!r} ({type(value).__name__}); "
                "give a probability, as 0.1"
            )
        if not 0 <= value < 1:
            raise ValueError(
                f"CoreConfig.{name} must be at least 0 and under 1, got {value}; "
                "give a probability, as 0.1"
            )

    @property
    def head_size(self) -> int:
        """Size of a query, key or value of one head."""
        return self.width // self.num_heads

    @property
    def inner_width(self) -> int:
        """Size inside the feed-forward sublayer, with the default filled in."""
        return 4 * self.width if self.feed_forward_width is None else self.feed_forward_width

    def to_dict(self) -> dict[str, Any]:
        """The config as plain data."""
        return asdict(self)
