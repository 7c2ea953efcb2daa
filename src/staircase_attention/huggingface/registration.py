"""Tells Transformers of the models, so that its Auto classes find them without remote code."""

from transformers import AutoConfig, AutoModelForCausalLM
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from staircase_attention.huggingface.config import StaircaseConfig
from staircase_attention.huggingface.model import StaircaseForCausalLM


def register() -> None:
    """Register config and model; importing `staircase_attention.huggingface` has done it."""
    kind = StaircaseConfig.model_type
    AutoConfig.register(kind, StaircaseConfig, exist_ok=True)
    AutoModelForCausalLM.register(StaircaseConfig, StaircaseForCausalLM, exist_ok=True)
    # Trainer shifts labels for its smoothing only where it finds the class in this list of names.
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[kind] = StaircaseForCausalLM.__name__
