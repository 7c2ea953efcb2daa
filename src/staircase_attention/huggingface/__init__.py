"""Hugging Face Transformers 5: an optional extra that no other subpackage imports.

Importing it registers the models with the Auto classes of Transformers:

>>> from transformers import AutoConfig, AutoModelForCausalLM
>>> import staircase_attention.huggingface
>>> config = AutoConfig.for_model("staircase-attention", width=16, num_layers=1, num_heads=2)
>>> type(AutoModelForCausalLM.from_config(config)).__name__
'StaircaseForCausalLM'
"""

try:
    from transformers import __version__ as _version
except ModuleNotFoundError as error:
    if error.name != "transformers":
        raise
    _version = "none"
if _version == "none" or int(_version.split(".")[0]) < 5:  # noqa: PLR2004
    raise ImportError(
        f"staircase_attention.huggingface needs Transformers 5, got {_version}; "
        "install it: pip install 'staircase-attention[huggingface]'"
    )

from transformers.models.auto import AutoConfig, AutoModelForCausalLM, modeling_auto

from staircase_attention.huggingface.cache import StateCache
from staircase_attention.huggingface.config import StaircaseConfig
from staircase_attention.huggingface.export import byte_tokenizer, export, wrap
from staircase_attention.huggingface.model import StaircaseForCausalLM
from staircase_attention.huggingface.recurrent import RecurrentForCausalLM, recurrent

for _model in (StaircaseForCausalLM, RecurrentForCausalLM):
    _config = _model.config_class
    AutoConfig.register(_config.model_type, _config, exist_ok=True)
    AutoModelForCausalLM.register(_config, _model, exist_ok=True)
    # Trainer shifts labels for its smoothing only if it finds the class in this list of names.
    modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[_config.model_type] = _model.__name__

__all__ = [
    "RecurrentForCausalLM",
    "StaircaseConfig",
    "StaircaseForCausalLM",
    "StateCache",
    "byte_tokenizer",
    "export",
    "recurrent",
    "wrap",
]
