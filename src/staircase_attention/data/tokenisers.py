"""Text as token numbers: the protocol, bytes as tokens, and tokenisers by name or from files."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from staircase_attention.checks import input_error
from staircase_attention.data import byte_pair
from staircase_attention.data.byte_pair import (
    NUM_BYTES,
    SETTINGS,
    TOKENIZER_FILE,
    BytePairTraining,
    Tokens,
)
from staircase_attention.files import as_written, parse_json, read_file
from staircase_attention.plain import convert

# The two pairs of names of GPT-2's files.
VOCABULARY_AND_MERGES = (("encoder.json", "vocab.bpe"), ("vocab.json", "merges.txt"))


class Tokeniser(Protocol):
    """Turns text into token numbers and back."""

    name: str
    """In the manifest."""
    vocab_size: int
    """Every token is below this, the end symbol included."""
    end_symbol: int | None
    """The token after every document. Text is never encoded to it. None if there is none."""
    is_lossless: bool
    """Whether decode(encode(x)) == x is certain for all bytes, UTF-8 or not."""

    def encode_batch(self, texts: Sequence[bytes]) -> list[Tokens]:
        """The tokens of each text, without an end symbol; uses all cores."""

    def decode(self, tokens: Tokens) -> bytes:
        """The text of some tokens; end symbols are dropped."""

    def save(self, folder: Path) -> None:
        """Write what load_tokeniser needs into an empty folder."""


class ByteTokeniser:
    """A token is a byte; the end symbol, if there is one, is 256.

    >>> tokeniser = ByteTokeniser()
    >>> tokeniser.encode_batch([b"Hi"])[0].tolist(), tokeniser.vocab_size
    ([72, 105], 257)
    """

    def __init__(self, *, has_end_symbol: bool = True) -> None:
        """Args: has_end_symbol: whether one ends each document; Enwik8 is one text without."""
        self.name = "bytes"
        self.vocab_size = NUM_BYTES + has_end_symbol
        self.end_symbol = NUM_BYTES if has_end_symbol else None
        self.is_lossless = True

    def encode_batch(self, texts: Sequence[bytes]) -> list[Tokens]:
        """Views of the texts."""
        return [np.frombuffer(text, dtype=np.uint8) for text in texts]

    def decode(self, tokens: Tokens) -> bytes:
        """The bytes, without end symbols."""
        return tokens[tokens < NUM_BYTES].astype(np.uint8).tobytes()

    def save(self, folder: Path) -> None:
        """Write the settings."""
        settings = {"kind": "bytes", "has_end_symbol": self.end_symbol is not None}
        (folder / SETTINGS).write_text(json.dumps(settings, indent=2) + "\n")


def named_tokeniser(name: str) -> Tokeniser | BytePairTraining:
    """The tokeniser that a command line names.

    'bytes'; 'bpe' or 'bpe-8008' for one of that many symbols, learnt from the corpus; or the path
    of a tokenizer.json, of a folder with GPT-2's encoder.json and vocab.bpe, or of the folder
    `tokeniser` of a corpus.

    >>> named_tokeniser("bpe-500")
    BytePairTraining(vocab_size=500, sample_bytes=32000000)
    """
    if name == "bytes":
        return ByteTokeniser()
    kind, _, number = name.partition("-")
    if kind == "bpe" and (number.isdecimal() or name == "bpe"):
        return BytePairTraining(vocab_size=int(number)) if number else BytePairTraining()
    path = Path(name)
    if path.is_file():
        return byte_pair.from_tokenizer_json(path)
    # A corpus's own tokeniser names its end symbol; in any other it is looked for.
    if (path / SETTINGS).is_file():
        return load_tokeniser(path)
    if (path / TOKENIZER_FILE).is_file():
        return byte_pair.from_tokenizer_json(path / TOKENIZER_FILE)
    for vocabulary, merges in VOCABULARY_AND_MERGES:
        if (path / vocabulary).is_file() and (path / merges).is_file():
            return byte_pair.from_vocabulary_and_merges(path / vocabulary, path / merges)
    rule = f"a tokeniser must be bytes, bpe-N, a {TOKENIZER_FILE}, or a folder of GPT-2's files"
    raise input_error(rule, name, "use for example bpe-8008")


def load_tokeniser(folder: Path) -> Tokeniser:
    """The tokeniser that `save` wrote into a folder."""
    with as_written(
        f"a saved tokeniser's {SETTINGS}", folder / SETTINGS, "prepare the corpus again"
    ):
        settings = parse_json(read_file(folder / SETTINGS))
        if settings["kind"] == "bytes":
            return ByteTokeniser(has_end_symbol=convert(bool, settings["has_end_symbol"], SETTINGS))
        end_symbol = convert(int, settings["end_symbol"], "end_symbol")
    tokenizer = byte_pair.read_tokenizer(folder / TOKENIZER_FILE)
    return byte_pair.BytePairTokeniser(tokenizer, end_symbol=end_symbol)
