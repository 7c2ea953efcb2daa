"""A model's shape as a config of Transformers: the JSON file beside the weights."""

import os
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, ClassVar

from transformers import PreTrainedConfig

from staircase_attention.checks import check_integer, input_error
from staircase_attention.layers import CoreConfig
from staircase_attention.references import require_trusted_code
from staircase_attention.schedules import Schedule, schedule_from_dict

# Those that a file of a stranger's may have: blocks of a user's own would be code.
CORE_FIELDS = [one.name for one in fields(CoreConfig) if one.name not in ("reference", "options")]
DEFAULT_SCHEDULE = {"name": "staircase", "chunk_size": 64, "num_passes": 4}
# Code in the folder, so that Auto classes find the model where this package was not imported.
CODE_NAME = "modeling_staircase"
CODE = '''\
"""The classes of this model, for Auto classes with trust_remote_code=True."""

try:
    from staircase_attention.huggingface import StaircaseConfig, StaircaseForCausalLM
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "this model needs staircase-attention; "
        "install it: pip install 'staircase-attention[huggingface]'"
    ) from error

__all__ = ["StaircaseConfig", "StaircaseForCausalLM"]
'''
AUTO_MAP = {
    "AutoConfig": f"{CODE_NAME}.StaircaseConfig",
    "AutoModelForCausalLM": f"{CODE_NAME}.StaircaseForCausalLM",
}


class StaircaseConfig(PreTrainedConfig):  # type: ignore[no-untyped-call]
    """Everything a model is built from: vocabulary size, the fields of `CoreConfig`, the schedule.

    >>> config = StaircaseConfig(schedule={"name": "transformer-xl", "span": 128})
    >>> config.make_schedule()
    TransformerXL(span=128, span_includes_self=True)
    """

    model_type: ClassVar[str] = "staircase-attention"
    # Otherwise Trainer would gather the cache with the predictions.
    keys_to_ignore_at_inference: ClassVar[list[str]] = ["past_key_values"]
    attribute_map: ClassVar[dict[str, str]] = {
        "hidden_size": "width",
        "num_hidden_layers": "num_layers",
        "num_attention_heads": "num_heads",
    }

    def __init__(
        self,
        *,
        vocab_size: int = 256,
        schedule: Schedule | Mapping[str, Any] = DEFAULT_SCHEDULE,
        use_cache: bool = True,
        **others: Any,  # noqa: ANN401
    ) -> None:
        check_integer("vocab_size", vocab_size, minimum=1, example=256)
        self.vocab_size = vocab_size
        self.schedule = plain_schedule(schedule)
        self.use_cache = use_cache
        # Fields of CoreConfig lie flat in the JSON file, as is usual in Transformers.
        core = {"width": 512, "num_layers": 8, "num_heads": 8} | {
            name: others.pop(name) for name in CORE_FIELDS if name in others
        }
        for name in CORE_FIELDS:
            setattr(self, name, getattr(CoreConfig(**core), name))
        self.make_schedule().check_core(num_layers=core["num_layers"])
        for name in ("eos_token_id", "bos_token_id", "pad_token_id"):
            value = others.get(name)
            for number in value if isinstance(value, list) else [value]:
                if number is not None:
                    check_integer(name, number, minimum=0, maximum=vocab_size - 1, example=0)
        # Input and output embeddings are separate in this family.
        super().__init__(**others | {"tie_word_embeddings": False, "auto_map": AUTO_MAP})

    @classmethod
    def from_dict(
        cls,
        config_dict: dict[str, Any],
        *,
        trust_code: bool = False,
        **others: Any,  # noqa: ANN401
    ) -> Any:  # noqa: ANN401
        """A config from its JSON file.

        A schedule of a user's own runs the code that the file names: only if this user trained with
        that code, or with `trust_code`, which `from_pretrained` passes on.
        """
        if trust_code:
            config_dict = config_dict | {"schedule": schedule_from_dict(config_dict["schedule"])}
        return super().from_dict(config_dict, **others)

    def save_pretrained(  # type: ignore[override]
        self,
        save_directory: str | os.PathLike[str],
        **others: Any,  # noqa: ANN401
    ) -> None:
        """Write config.json, and beside it the code that it names."""
        # `transformers serve` takes a class of this name from Transformers itself.
        self.architectures = ["AutoModelForCausalLM"]
        super().save_pretrained(save_directory, **others)
        (Path(save_directory) / f"{CODE_NAME}.py").write_text(CODE)

    @classmethod
    def register_for_auto_class(cls, auto_class: str = "AutoConfig") -> None:
        """Nothing: Transformers would copy this file into every folder that it writes."""

    @property
    def core(self) -> CoreConfig:
        """The shape of the core."""
        return CoreConfig(**{name: getattr(self, name) for name in CORE_FIELDS})

    def make_schedule(self) -> Schedule:
        """The schedule as an object."""
        return schedule_from_dict(self.schedule)


def plain_schedule(schedule: Schedule | Mapping[str, Any]) -> dict[str, Any]:
    """A schedule as plain data; code that it names must be trusted."""
    if isinstance(schedule, Schedule):
        return schedule.to_dict()
    if not isinstance(schedule, Mapping) or not {"name", "reference"} & {*schedule}:
        rule = "schedule must be a Schedule or the result of its to_dict()"
        raise input_error(rule, repr(schedule), f"use for example {DEFAULT_SCHEDULE}")
    require_trusted_code({"model": schedule}, Path("config.json"))
    return dict(schedule)
