"""Tokenisers of the `tokenizers` library: byte-level BPE above all, and any tokenizer.json."""

import array
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from staircase_attention.data.pieces import LONGEST_PIECE
from staircase_attention.data.tokenisers.byte_alphabet import bytes_of, character_of_byte
from staircase_attention.data.tokenisers.guarantees import is_lossless, may_be_cut
from staircase_attention.data.tokenisers.protocol import SETTINGS, Tokens

TOKENIZER_FILE = "tokenizer.json"
SHORTEST_PIECE = 1 << 14
"""Bytes encoded as one, so that one long document keeps all cores busy."""
MOST_PARTS = 1 << 14
"""Parts encoded at once of texts that are not UTF-8: the library takes a kilobyte for each."""
KINDS = {"BPE": "byte-pair", "Unigram": "unigram", "WordPiece": "word-piece", "WordLevel": "words"}
# Bytes that are not UTF-8, as Python escapes them.
STRAY_BYTES = re.compile("([\udc80-\udcff]+)")


class BytePairTokeniser:
    """A tokeniser of the `tokenizers` library, with an end symbol.

    Special tokens are not recognised in text: a document that says "<|endoftext|>" is encoded
    letter by letter, and an end symbol always is the end of a document. Nothing is added, padded
    or truncated.

    Text that is not UTF-8: a byte-level tokeniser encodes each stray byte as that byte's own
    token, so that it is lossless for all bytes. Any other gets U+FFFD in its place.
    """

    def __init__(self, tokenizer: Tokenizer, *, end_symbol: int) -> None:
        """Take a tokenizer over; it is changed as said above.

        Args:
            tokenizer: what encodes.
            end_symbol: the token after every document, or a number after all tokens.
        """
        self._tokenizer, self._end_symbol = tokenizer, end_symbol
        tokenizer.no_padding()
        tokenizer.no_truncation()
        tokenizer.encode_special_tokens = True
        plan = json.loads(tokenizer.to_str())
        self._kind: str = KINDS.get(plan["model"]["type"], "other")
        self._is_lossless = is_lossless(plan)
        self._shortest_piece = SHORTEST_PIECE if may_be_cut(tokenizer) else LONGEST_PIECE
        vocabulary = tokenizer.get_vocab(with_added_tokens=True)
        self._vocab_size = max(*vocabulary.values(), end_symbol) + 1
        self._vocabulary = vocabulary

    @property
    def name(self) -> str:
        """Its kind and its size: 'byte-pair-50257'."""
        return f"{self._kind}-{self._vocab_size}"

    @property
    def vocab_size(self) -> int:
        """One more than the highest token."""
        return self._vocab_size

    @property
    def end_symbol(self) -> int:
        """As it was given."""
        return self._end_symbol

    @property
    def is_lossless(self) -> bool:
        """Whether its parts are all such that nothing can get lost."""
        return self._is_lossless

    @property
    def shortest_piece(self) -> int:
        """Short where cutting leaves no trace, as long as can be where it may."""
        return self._shortest_piece

    def encode_batch(self, texts: Sequence[bytes]) -> list[Tokens]:
        """The tokens of each text; the library's threads share the work."""
        try:
            return self._encode([text.decode() for text in texts])
        except UnicodeDecodeError:
            groups = _groups(self._parts(text) for text in texts)
            return [tokens for group in groups for tokens in self._encode_parts(group)]

    def decode(self, tokens: Tokens) -> bytes:
        """The text of some tokens."""
        kept = tokens[tokens != self._end_symbol].tolist()
        if self._is_lossless:
            return b"".join(map(self._bytes_of_token.__getitem__, kept))
        return self._tokenizer.decode(kept, skip_special_tokens=False).encode()

    def save(self, folder: Path) -> None:
        """Write the tokenizer.json, which other programs can read, and the settings."""
        settings = {"kind": "tokenizers", "end_symbol": self._end_symbol}
        (folder / SETTINGS).write_text(json.dumps(settings, indent=2) + "\n")
        (folder / TOKENIZER_FILE).write_text(self._tokenizer.to_str(pretty=True))

    def _encode(self, texts: Sequence[str]) -> list[Tokens]:
        encodings = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        # The way by `array` takes half the time of np.array.
        return [np.frombuffer(array.array("I", one.ids), dtype=np.uint32) for one in encodings]

    def _parts(self, text: bytes) -> list[str]:
        """The text as str; every second part is a run of stray bytes."""
        if not self._is_lossless:
            return [text.decode(errors="replace")]
        return STRAY_BYTES.split(text.decode(errors="surrogateescape"))

    def _encode_parts(self, texts: list[list[str]]) -> Iterator[Tokens]:
        """The tokens of texts that are given in parts."""
        readable = iter(self._encode([part for parts in texts for part in parts[::2]]))
        for parts in texts:
            yield np.concatenate(
                [
                    self._tokens_of_bytes[list(part.encode(errors="surrogateescape"))]
                    if number % 2
                    else next(readable)
                    for number, part in enumerate(parts)
                ]
            )

    @cached_property
    def _bytes_of_token(self) -> dict[int, bytes]:
        added = self._tokenizer.get_added_tokens_decoder()
        meanings = {number: bytes_of(token) for token, number in self._vocabulary.items()}
        # A token that was added is found in the text itself, not in the byte alphabet.
        return meanings | {number: token.content.encode() for number, token in added.items()}

    @cached_property
    def _tokens_of_bytes(self) -> NDArray[np.uint32]:
        alphabet = character_of_byte()
        return np.array([self._vocabulary[alphabet[byte]] for byte in range(256)], dtype=np.uint32)


def _groups(texts: Iterable[list[str]]) -> Iterator[list[list[str]]]:
    """Texts that are encoded at once: of noise, where every part has a letter or two, not many."""
    group: list[list[str]] = []
    num_parts = 0
    for parts in texts:
        group.append(parts)
        num_parts += len(parts)
        if num_parts > MOST_PARTS:
            yield group
            group, num_parts = [], 0
    yield group
