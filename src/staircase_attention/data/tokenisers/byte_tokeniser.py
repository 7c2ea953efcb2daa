"""Bytes as tokens."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from staircase_attention.data.pieces import LONGEST_PIECE
from staircase_attention.data.tokenisers.protocol import SETTINGS, Tokens

NUM_BYTES = 256


@dataclass(frozen=True, kw_only=True, slots=True)
class ByteTokeniser:
    """A token is a byte; the end symbol, if there is one, is 256.

    >>> tokeniser = ByteTokeniser()
    >>> tokeniser.encode_batch([b"Hi"])[0].tolist(), tokeniser.vocab_size
    ([72, 105], 257)
    """

    has_end_symbol: bool = True
    """Whether documents are closed by a symbol; Enwik8 is one text and has none."""

    @property
    def name(self) -> str:
        """Always the same."""
        return "bytes"

    @property
    def vocab_size(self) -> int:
        """The 256 bytes, and the end symbol if there is one."""
        return NUM_BYTES + self.has_end_symbol

    @property
    def end_symbol(self) -> int | None:
        """The number after the last byte."""
        return NUM_BYTES if self.has_end_symbol else None

    @property
    def is_lossless(self) -> bool:
        """Always."""
        return True

    @property
    def shortest_piece(self) -> int:
        """Bytes may be cut anywhere."""
        return LONGEST_PIECE

    def encode_batch(self, texts: Sequence[bytes]) -> list[Tokens]:
        """Views of the texts."""
        return [np.frombuffer(text, dtype=np.uint8) for text in texts]

    def decode(self, tokens: Tokens) -> bytes:
        """The bytes, without end symbols."""
        return tokens[tokens < NUM_BYTES].astype(np.uint8).tobytes()

    def save(self, folder: Path) -> None:
        """Write the settings."""
        settings = {"kind": "bytes", "has_end_symbol": self.has_end_symbol}
        (folder / SETTINGS).write_text(json.dumps(settings, indent=2) + "\n")
