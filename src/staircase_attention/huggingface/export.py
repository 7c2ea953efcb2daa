"""From our own models to Transformers, in memory and on disk."""

import os
import tempfile
from pathlib import Path

import torch
from tokenizers import Tokenizer

from staircase_attention.huggingface.config import StaircaseConfig
from staircase_attention.huggingface.model import StaircaseForCausalLM, mark_initialised
from staircase_attention.huggingface.tokenizer import (
    NUM_BYTES,
    find_tokenizer,
    for_transformers,
)
from staircase_attention.models import SequenceModel


def wrap(
    model: SequenceModel,
    *,
    bos_token_id: int | None = None,
    eos_token_id: int | list[int] | None = None,
    pad_token_id: int | None = None,
) -> StaircaseForCausalLM:
    """The same model, weights and all, as Transformers calls it; nothing is copied."""
    check_model(model)
    config = StaircaseConfig.of(
        vocab_size=model.vocab_size,
        core=model.config,
        schedule=model.schedule,
        bos_token_id=bos_token_id,
        eos_token_id=eos_token_id,
        pad_token_id=pad_token_id,
        dtype=model.output.weight.dtype,
    )
    with torch.device("meta"):
        wrapped = StaircaseForCausalLM(config)
    for parameter in model.parameters():
        mark_initialised(parameter)
    wrapped.sequence_model = model
    wrapped.training = model.training
    return wrapped


def export(
    model: SequenceModel,
    folder: str | os.PathLike[str],
    *,
    tokenizer: Tokenizer | str | os.PathLike[str] | None = None,
    bos_token_id: int | None = None,
    eos_token_id: int | list[int] | None = None,
    pad_token_id: int | None = None,
) -> Path:
    """Write a model to a folder that `from_pretrained` reads: config, weights, tokeniser.

    The tokeniser may be given as an object or as its JSON file. Without one, a model of 256
    symbols gets that of bytes, one of 257 that of bytes and an end symbol; any other goes without.
    Padding is the end symbol where there is one, and byte 0 among bytes alone.
    """
    check_model(model)
    target = Path(folder)
    check_folder(target)
    found = find_tokenizer(tokenizer, model.vocab_size)
    if tokenizer is None and model.vocab_size == NUM_BYTES + 1 and eos_token_id is None:
        eos_token_id = NUM_BYTES
    if pad_token_id is None:
        is_bytes = tokenizer is None and found is not None
        pad_token_id = first(eos_token_id, otherwise=0 if is_bytes else None)
    wrapped = wrap(
        model, bos_token_id=bos_token_id, eos_token_id=eos_token_id, pad_token_id=pad_token_id
    )
    speaking = None if found is None else for_transformers(found, wrapped.config)
    target.parent.mkdir(parents=True, exist_ok=True)
    # Whole or not at all: a folder that is there can be loaded.
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}.") as scratch:
        written = Path(scratch) / target.name
        wrapped.save_pretrained(written)
        if speaking is not None:
            speaking.save_pretrained(written)
        written.replace(target)
    return target


def first(ids: int | list[int] | None, *, otherwise: int | None) -> int | None:
    """One end symbol of those there are."""
    if isinstance(ids, list):
        return ids[0] if ids else otherwise
    return otherwise if ids is None else ids


def check_model(model: object) -> None:
    """Refuse what cannot be a causal language model."""
    if not isinstance(model, SequenceModel):
        raise TypeError(
            f"Transformers gets a SequenceModel, got {type(model).__name__}; pass one of the family"
        )
    if model.output_size != model.vocab_size:
        raise ValueError(
            "a causal language model predicts the symbols that it reads, "
            f"got output_size = {model.output_size} with vocab_size = {model.vocab_size}; "
            "build the model without output_size"
        )


def check_folder(target: Path) -> None:
    """Refuse to write over what is there."""
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ValueError(
            f"an export needs a folder that is new or empty, got {target}; name another"
        )
