"""A prepared corpus: its manifest, its tokeniser, and its splits in mapped memory."""

import zlib
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np

from staircase_attention.checks import input_error
from staircase_attention.data.checksums import sha256_of
from staircase_attention.data.manifest import MANIFEST, ArrayRecord, Manifest
from staircase_attention.data.shards import STARTS_DTYPE
from staircase_attention.data.token_split import TokenSplit
from staircase_attention.data.tokenisers import Tokeniser, load_tokeniser

TOKENISER_FOLDER = "tokeniser"
DECODED_TOKENS = 1 << 20
"""Tokens decoded at once when a corpus is checked."""


def unfinished_folder(corpus: Path) -> Path:
    """Where a corpus is prepared: beside the place where it will be.

    >>> unfinished_folder(Path("/data/enwik8"))
    PosixPath('/data/enwik8.unfinished')
    """
    whole = corpus.absolute()
    return whole.parent / f"{whole.name}.unfinished"


class Corpus:
    """A folder that a preparation has finished."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder, self.manifest = folder, manifest

    @classmethod
    def open(cls, folder: str | Path) -> "Corpus":
        """Open a folder, having seen that all its files are there and have their sizes."""
        folder = Path(folder)
        if not (folder / MANIFEST).is_file():
            remedy = "prepare it first"
            if unfinished_folder(folder).is_dir():
                remedy = "run its preparation again: it goes on where it was stopped"
            raise input_error("a corpus must have a manifest", f"none in {folder}", remedy)
        corpus = cls(folder, Manifest.read(folder))
        for record, width in corpus._arrays():
            path = folder / record.file
            size = path.stat().st_size if path.is_file() else None
            if size != record.num_items * width:
                rule = f"{path} must have {record.num_items * width} bytes"
                raise input_error(rule, size, "copy it again, or prepare the corpus again")
        return corpus

    @cached_property
    def tokeniser(self) -> Tokeniser:
        """What its tokens mean."""
        return load_tokeniser(self.folder / TOKENISER_FOLDER)

    @property
    def vocab_size(self) -> int:
        """Every token is below it."""
        return self.manifest.tokeniser.vocab_size

    @property
    def splits(self) -> Sequence[str]:
        """Their names."""
        return tuple(self.manifest.splits)

    def split(self, name: str) -> TokenSplit:
        """One split."""
        if name not in self.manifest.splits:
            rule = f"a split of {self.folder} must be one of {', '.join(self.splits)}"
            raise input_error(rule, repr(name), f"use for example {self.splits[0]!r}")
        return TokenSplit(
            self.folder,
            self.manifest.splits[name],
            dtype=self.manifest.dtype,
            end_symbol=self.manifest.tokeniser.end_symbol,
        )

    def verify(self) -> None:
        """Read everything: all checksums, and that decoding gives the text that was encoded.

        The latter only for a tokeniser that is lossless; others do not promise it.
        """
        expected = {record.file: record.sha256 for record, _ in self._arrays()}
        for name, sha256 in self.manifest.tokeniser.files.items():
            expected[f"{TOKENISER_FOLDER}/{name}"] = sha256
        for file, sha256 in expected.items():
            found = sha256_of(self.folder / file)
            if found != sha256:
                rule = f"{self.folder / file} must have the sha256 {sha256}"
                raise input_error(rule, found, "copy it again, or prepare the corpus again")
        if self.manifest.tokeniser.is_lossless:
            for name in self.splits:
                self._verify_decoding(name)

    def num_bytes(self, name: str, num_tokens: int) -> float:
        """Of the text of a split's first tokens; of those of a lossy tokeniser, their share."""
        split = self.split(name)
        if num_tokens < split.num_tokens and self.manifest.tokeniser.is_lossless:
            return sum(map(len, self._decoded(split, num_tokens)))
        return split.num_bytes * num_tokens / max(1, split.num_tokens)

    def _decoded(self, split: TokenSplit, num_tokens: int) -> Iterator[bytes]:
        """The text of a split's first tokens, in parts."""
        for start in range(0, num_tokens, DECODED_TOKENS):
            stop = min(start + DECODED_TOKENS, num_tokens)
            yield self.tokeniser.decode(split.tokens(start, stop))

    def _verify_decoding(self, name: str) -> None:
        split, crc32, num_bytes = self.split(name), 0, 0
        for text in self._decoded(split, split.num_tokens):
            crc32 = zlib.crc32(text, crc32)
            num_bytes += len(text)
        record = split.record
        if (crc32, num_bytes) != (record.text_crc32, record.num_bytes):
            rule = f"{name} must decode to {record.num_bytes} bytes of CRC-32 {record.text_crc32}"
            received = f"{num_bytes} of {crc32}"
            raise input_error(rule, received, "report this: encoding has lost something")

    def _arrays(self) -> Iterator[tuple[ArrayRecord, int]]:
        """Every file of numbers, and the width of one."""
        width = np.dtype(self.manifest.dtype).itemsize
        for split in self.manifest.splits.values():
            yield from ((shard, width) for shard in split.shards)
            yield split.starts, STARTS_DTYPE.itemsize
