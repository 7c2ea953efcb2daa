"""Tokenisers from files: GPT-2's, any tokenizer.json, and those that `save` has written."""

import json
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from staircase_attention.checks import input_error
from staircase_attention.data.tokenisers.byte_pair import TOKENIZER_FILE, BytePairTokeniser
from staircase_attention.data.tokenisers.byte_tokeniser import ByteTokeniser
from staircase_attention.data.tokenisers.protocol import SETTINGS, Tokeniser

END_NAME = "<|endoftext|>"
KNOWN_ENDS = (END_NAME, "<|end_of_text|>", "</s>", "<eos>", "<|eot_id|>", "[SEP]")
"""What well-known tokenisers call the end of a text, the likeliest first."""
VOCABULARY_AND_MERGES = (("encoder.json", "vocab.bpe"), ("vocab.json", "merges.txt"))
"""The two names that GPT-2's files go by."""


def byte_level(model: models.BPE) -> Tokenizer:
    """A tokenizer that splits words as GPT-2 does, and adds no space before the first."""
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def from_vocabulary_and_merges(vocabulary: Path, merges: Path) -> BytePairTokeniser:
    """GPT-2's tokeniser, or another in the form of its two files."""
    try:
        model = models.BPE.from_file(str(vocabulary), str(merges))
    # The library raises plain Exception.
    except Exception as error:
        rule = "a vocabulary and its merges must be as GPT-2 has them"
        received = f"{vocabulary} and {merges} ({error})"
        raise input_error(rule, received, "fetch both files again") from error
    tokenizer = byte_level(model)
    tokenizer.add_special_tokens([END_NAME])
    end_symbol = tokenizer.token_to_id(END_NAME)
    assert end_symbol is not None
    return BytePairTokeniser(tokenizer, end_symbol=end_symbol)


def from_tokenizer_json(path: Path, *, end_name: str | None = None) -> BytePairTokeniser:
    """Any tokeniser in the form of Hugging Face's tokenizer.json.

    Args:
        path: the file.
        end_name: the special token that ends a document. None for the first of KNOWN_ENDS that it
            has, or else a new number after all tokens.
    """
    tokenizer = _read(path)
    special = {
        token.content: number
        for number, token in tokenizer.get_added_tokens_decoder().items()
        if token.special
    }
    if end_name is not None and end_name not in special:
        rule = f"end_name must be a special token of {path}"
        raise input_error(
            rule, repr(end_name), f"use one of {', '.join(special) or 'none: leave it out'}"
        )
    known = [end_name] if end_name else [name for name in KNOWN_ENDS if name in special]
    new = max(tokenizer.get_vocab(with_added_tokens=True).values()) + 1
    end_symbol = special[known[0]] if known else new
    return BytePairTokeniser(tokenizer, end_symbol=end_symbol)


def load_tokeniser(folder: Path) -> Tokeniser:
    """The tokeniser that `save` wrote into a folder."""
    try:
        settings = json.loads((folder / SETTINGS).read_text())
        if settings["kind"] == "bytes":
            return ByteTokeniser(has_end_symbol=settings["has_end_symbol"])
        end_symbol = settings["end_symbol"]
    except (OSError, ValueError, KeyError) as error:
        rule = f"a saved tokeniser must have a {SETTINGS}"
        raise input_error(rule, f"{folder} ({error!r})", "prepare the corpus again") from error
    return BytePairTokeniser(_read(folder / TOKENIZER_FILE), end_symbol=end_symbol)


def tokeniser_from(path: Path) -> Tokeniser:
    """The tokeniser in a file tokenizer.json, or in a folder that has one or GPT-2's two files."""
    if path.is_file():
        return from_tokenizer_json(path)
    if (path / SETTINGS).is_file():
        return load_tokeniser(path)
    if (path / TOKENIZER_FILE).is_file():
        return from_tokenizer_json(path / TOKENIZER_FILE)
    for vocabulary, merges in VOCABULARY_AND_MERGES:
        if (path / vocabulary).is_file() and (path / merges).is_file():
            return from_vocabulary_and_merges(path / vocabulary, path / merges)
    rule = f"a tokeniser must be {TOKENIZER_FILE}, or encoder.json and vocab.bpe in one folder"
    raise input_error(rule, path, "name that file or that folder")


def _read(path: Path) -> Tokenizer:
    try:
        return Tokenizer.from_file(str(path))
    # The library raises plain Exception.
    except Exception as error:
        rule = "a tokenizer.json must be as the tokenizers library writes it"
        raise input_error(rule, f"{path} ({error})", "fetch it again") from error
