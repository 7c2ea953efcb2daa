"""The family in Hugging Face Transformers 5: an optional extra that nothing else imports.

Importing it registers the models, after which Transformers knows them as it knows its own:

>>> from transformers import AutoConfig, AutoModelForCausalLM
>>> import staircase_attention.huggingface
>>> config = AutoConfig.for_model("staircase-attention", width=16, num_layers=1, num_heads=2)
>>> type(AutoModelForCausalLM.from_config(config)).__name__
'StaircaseForCausalLM'
"""

try:
    import transformers
except ModuleNotFoundError as error:
    if error.name != "transformers":
        raise
    raise ImportError(
        "staircase_attention.huggingface needs Transformers 5, got none; "
        "install it: pip install 'staircase-attention[huggingface]'"
    ) from None
if int(transformers.__version__.split(".")[0]) < 5:  # noqa: PLR2004
    raise ImportError(
        f"staircase_attention.huggingface needs Transformers 5, got {transformers.__version__}; "
        "install it: pip install --upgrade 'staircase-attention[huggingface]'"
    )

from staircase_attention.huggingface.cache import StateCache
from staircase_attention.huggingface.config import StaircaseConfig
from staircase_attention.huggingface.export import export, wrap
from staircase_attention.huggingface.model import StaircaseForCausalLM
from staircase_attention.huggingface.registration import register
from staircase_attention.huggingface.tokenizer import byte_tokenizer

register()

__all__ = [
    "StaircaseConfig",
    "StaircaseForCausalLM",
    "StateCache",
    "byte_tokenizer",
    "export",
    "register",
    "wrap",
]
