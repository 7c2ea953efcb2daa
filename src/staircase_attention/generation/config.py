"""How tokens are chosen: what a user sets."""

import math
from dataclasses import asdict, dataclass
from typing import Any

from staircase_attention.checks import check_integer


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplingConfig:
    """How the next token is chosen from logits, in the order in which it happens.

    The penalty changes logits, the temperature scales them, and then top-k, top-p and min-p each
    take away tokens from what the one before it left; what remains is drawn from.
    """

    repetition_penalty: float = 1.0
    """How much less likely recent tokens get; 1 changes nothing, under 1 makes them likelier."""
    repetition_window: int = 256
    """How many of a row's latest tokens, those of its prompt included, count as recent."""
    temperature: float = 1.0
    """Logits are divided by it; 0 takes the likeliest token, and then nothing is drawn."""
    top_k: int | None = None
    """Keep this many of the likeliest tokens."""
    top_p: float | None = None
    """Keep the fewest of the likeliest tokens that together have at least this probability."""
    min_p: float | None = None
    """Keep tokens that have at least this fraction of the likeliest token's probability."""
    seed: int = 0
    """Another seed, other tokens; see `uniform` for what they depend on besides."""

    def __post_init__(self) -> None:
        self._check("repetition_penalty", "over 0", lambda value: value > 0, "1.2")
        check_integer("repetition_window", self.repetition_window, minimum=1, example=256)
        self._check("temperature", "at least 0 and finite", lambda value: value >= 0, "0.8")
        if self.top_k is not None:
            check_integer("top_k", self.top_k, minimum=1, example=40)
        if self.top_p is not None:
            self._check("top_p", "over 0 and at most 1", lambda value: 0 < value <= 1, "0.9")
        if self.min_p is not None:
            self._check("min_p", "from 0 to 1", lambda value: 0 <= value <= 1, "0.05")
        check_integer("seed", self.seed, minimum=0, example=0)

    def _check(self, name: str, rule: str, holds: Any, example: str) -> None:  # noqa: ANN401
        value: Any = getattr(self, name)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise TypeError(
                f"SamplingConfig.{name} must be a number, got {value!r} ({type(value).__name__}); "
                f"give one, as {example}"
            )
        if not math.isfinite(value) or not holds(value):
            raise ValueError(
                f"SamplingConfig.{name} must be {rule}, got {value}; give a number, as {example}"
            )

    def to_dict(self) -> dict[str, Any]:
        """The config as plain data."""
        return asdict(self)
