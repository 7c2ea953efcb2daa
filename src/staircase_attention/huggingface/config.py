"""A model's shape as Transformers keeps it: the JSON beside the weights."""

from collections.abc import Mapping
from typing import Any, ClassVar

from transformers import PreTrainedConfig

from staircase_attention.layers import CoreConfig
from staircase_attention.layers.config import Positions
from staircase_attention.models.checks import check_sizes
from staircase_attention.schedules import Schedule, schedule_from_dict

DEFAULT_SCHEDULE = {"name": "staircase", "chunk_size": 64, "num_passes": 4}


class StaircaseConfig(PreTrainedConfig):  # type: ignore[no-untyped-call]
    """Everything a model is built from: its symbols, the fields of `CoreConfig`, its schedule.

    >>> config = StaircaseConfig(schedule={"name": "transformer-xl", "span": 128})
    >>> config.make_schedule()
    TransformerXL(span=128)
    """

    model_type: ClassVar[str] = "staircase-attention"
    # Without a list of its own, Trainer would gather the cache with the predictions.
    keys_to_ignore_at_inference: ClassVar[list[str]] = ["past_key_values"]
    # Tools that look for a model's size know these names.
    attribute_map: ClassVar[dict[str, str]] = {
        "hidden_size": "width",
        "num_hidden_layers": "num_layers",
        "num_attention_heads": "num_heads",
    }

    def __init__(
        self,
        *,
        vocab_size: int = 256,
        width: int = 512,
        num_layers: int = 8,
        num_heads: int = 8,
        feed_forward_width: int | None = None,
        dropout: float = 0.0,
        embedding_dropout: float = 0.0,
        positions: Positions = "relative",
        max_distance: int | None = None,
        schedule: Schedule | Mapping[str, Any] = DEFAULT_SCHEDULE,
        use_cache: bool = True,
        bos_token_id: int | None = None,
        eos_token_id: int | list[int] | None = None,
        pad_token_id: int | None = None,
        **others: Any,  # noqa: ANN401
    ) -> None:
        self.vocab_size = vocab_size
        self.width = width
        self.num_layers = num_layers
        self.num_heads = num_heads
        self.feed_forward_width = feed_forward_width
        self.dropout = dropout
        self.embedding_dropout = embedding_dropout
        self.positions = positions
        self.max_distance = max_distance
        self.schedule = plain_schedule(schedule)
        self.use_cache = use_cache
        others |= {
            "bos_token_id": bos_token_id,
            "eos_token_id": eos_token_id,
            "pad_token_id": pad_token_id,
            # Input and output embeddings are two things in this family.
            "tie_word_embeddings": False,
        }
        super().__init__(**others)
        self._check()

    @classmethod
    def of(
        cls,
        *,
        vocab_size: int,
        core: CoreConfig,
        schedule: Schedule,
        **others: Any,  # noqa: ANN401
    ) -> "StaircaseConfig":
        """The config of a model made of these parts."""
        return cls(vocab_size=vocab_size, schedule=schedule, **core.to_dict(), **others)

    @property
    def core(self) -> CoreConfig:
        """The shape of the core."""
        return CoreConfig(
            width=self.width,
            num_layers=self.num_layers,
            num_heads=self.num_heads,
            feed_forward_width=self.feed_forward_width,
            dropout=self.dropout,
            embedding_dropout=self.embedding_dropout,
            positions=self.positions,
            max_distance=self.max_distance,
        )

    def make_schedule(self) -> Schedule:
        """The schedule as an object."""
        return schedule_from_dict(self.schedule)

    def _check(self) -> None:
        check_sizes(vocab_size=self.vocab_size)
        self.make_schedule().check_core(num_layers=self.core.num_layers)
        for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
            check_token_id(name, getattr(self, name), self.vocab_size)


def plain_schedule(schedule: Schedule | Mapping[str, Any]) -> dict[str, Any]:
    """A schedule as plain data, whichever way it was given."""
    if isinstance(schedule, Schedule):
        return schedule.to_dict()
    if not isinstance(schedule, Mapping) or "name" not in schedule:
        raise ValueError(
            f"schedule must be a Schedule, or what its to_dict() gives, got {schedule!r}; "
            f"write one, as {DEFAULT_SCHEDULE}"
        )
    return dict(schedule)


def check_token_id(name: str, value: Any, vocab_size: int) -> None:  # noqa: ANN401
    """Refuse a special symbol that the model does not have."""
    for one in value if isinstance(value, list) else [value]:
        if one is None:
            continue
        if isinstance(one, bool) or not isinstance(one, int) or not 0 <= one < vocab_size:
            raise ValueError(
                f"{name} must be None or a number from 0 to vocab_size - 1 = {vocab_size - 1}, "
                f"got {one!r}; give the id of a symbol that the model has"
            )
