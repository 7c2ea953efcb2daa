"""What a tokeniser is."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Tokens = NDArray[np.unsignedinteger[Any]]
"""Token numbers, of whichever width."""

SETTINGS = "settings.json"
"""The file that says what kind of tokeniser a folder holds."""


class Tokeniser(Protocol):
    """Turns text into numbers and back."""

    @property
    def name(self) -> str:
        """What the manifest calls it."""

    @property
    def vocab_size(self) -> int:
        """Every token is below this; the end symbol is counted."""

    @property
    def end_symbol(self) -> int | None:
        """The token after every document, which no text is ever encoded to; None for none."""

    @property
    def is_lossless(self) -> bool:
        """Whether decode(encode(x)) == x is certain for all bytes, be they UTF-8 or not."""

    @property
    def shortest_piece(self) -> int:
        """Bytes from which on a text may be cut into pieces that are encoded one by one."""

    def encode_batch(self, texts: Sequence[bytes]) -> list[Tokens]:
        """The tokens of each text, without an end symbol; uses all cores."""

    def decode(self, tokens: Tokens) -> bytes:
        """The text of some tokens; an end symbol is no text."""

    def save(self, folder: Path) -> None:
        """Write all that load_tokeniser needs into an empty folder."""
