"""What a corpus is made of: the file that makes a folder a corpus."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from staircase_attention.checks import input_error
from staircase_attention.files import write_json

FORMAT = 1
MANIFEST = "manifest.json"
TOKEN_DTYPES = {"uint8": "<u1", "uint16": "<u2", "uint32": "<u4"}
"""The widths of tokens that a manifest may name. Numpy would take 'O' for pointers into memory."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FileRecord:
    """A file that a source was read from."""

    path: str
    """As it was named."""
    num_bytes: int
    """Its size, as stored."""
    sha256: str
    """Its checksum, as stored."""


@dataclass(slots=True)
class Counts:
    """How much of something there is."""

    num_documents: int = 0
    num_bytes: int = 0
    """Of text, as UTF-8; end symbols are none."""
    num_tokens: int = 0
    """With the end symbols."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceRecord:
    """A source, and what has become of it."""

    name: str
    """What it was called."""
    weight: float
    """Passes over its training documents."""
    parameters: Mapping[str, Any]
    """How it was read."""
    files: tuple[FileRecord, ...]
    """What it was read from."""
    counts: Mapping[str, Counts] = field(default_factory=dict)
    """What it gave to each split; a document that is there twice counts twice."""
    skipped: Mapping[str, int] = field(default_factory=dict)
    """What of it could not be used."""

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> "SourceRecord":
        """The record that a JSON file holds."""
        files = tuple(FileRecord(**file) for file in plain["files"])
        counts = {split: Counts(**counts) for split, counts in plain["counts"].items()}
        return cls(**{**plain, "files": files, "counts": counts})


@dataclass(frozen=True, kw_only=True, slots=True)
class ArrayRecord:
    """A file of numbers of one width, little-endian, without a header."""

    file: str
    """Its name in the folder."""
    num_items: int
    """Its size is this times the width."""
    sha256: str
    """Its checksum."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SplitRecord:
    """Train, valid or test."""

    shards: tuple[ArrayRecord, ...]
    """One after another they are the split."""
    starts: ArrayRecord
    """Where in the split each document begins, as 64-bit numbers."""
    num_documents: int
    num_bytes: int
    """Of text: what bits per byte are counted by."""
    num_tokens: int
    """With the end symbols."""
    text_crc32: int
    """Of the text of all documents, end to end: decoding must give it again."""

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> "SplitRecord":
        """The record that a JSON file holds."""
        shards = tuple(ArrayRecord(**shard) for shard in plain["shards"])
        return cls(**{**plain, "shards": shards, "starts": ArrayRecord(**plain["starts"])})


@dataclass(frozen=True, kw_only=True, slots=True)
class TokeniserRecord:
    """What turned text into tokens."""

    name: str
    """Its kind and size."""
    vocab_size: int
    """Every token is below it."""
    end_symbol: int | None
    """The token after every document; None where there is none."""
    is_lossless: bool
    """Whether decoding is certain to give the text again."""
    files: Mapping[str, str]
    """Its files in the folder `tokeniser`, each with its sha256."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Preparation:
    """All that a corpus depends on: the same preparation always gives the same bytes."""

    kind: str
    """'enwik8', 'text', 'reddit'."""
    sources: tuple[SourceRecord, ...]
    """What is read, without what becomes of it."""
    parameters: Mapping[str, Any]
    """How it is split, encoded and stored."""

    def without_results(self) -> "Preparation":
        """What was known before it began."""
        return replace(
            self, sources=tuple(replace(one, counts={}, skipped={}) for one in self.sources)
        )

    def as_plain(self) -> dict[str, Any]:
        """As JSON can write it."""
        plain: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return plain


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """All that is known of a corpus."""

    preparation: Preparation
    """Where it comes from; its sources say what became of them."""
    tokeniser: TokeniserRecord
    """What its tokens mean."""
    dtype: str
    """How wide a token is: 'uint8', 'uint16' or 'uint32'."""
    splits: Mapping[str, SplitRecord]
    """What it consists of."""
    format: int = FORMAT
    """The version of all this."""

    def write(self, folder: Path) -> None:
        """Make a folder a corpus."""
        write_json(folder / MANIFEST, asdict(self))

    @classmethod
    def read(cls, folder: Path) -> "Manifest":
        """The manifest of a folder."""
        path = folder / MANIFEST
        try:
            plain = json.loads(path.read_text())
            if plain["format"] != FORMAT:
                rule, received = f"a corpus must have format {FORMAT}", plain["format"]
                raise input_error(
                    rule, received, "prepare it again, or use another version of this"
                )
            return cls._from_plain(plain)
        except (json.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
            rule, received = "a manifest must be as it was written", f"{path} ({error!r})"
            raise input_error(rule, received, "prepare the corpus again") from error

    @classmethod
    def _from_plain(cls, plain: Mapping[str, Any]) -> "Manifest":
        dtype = plain["dtype"]
        if not isinstance(dtype, str) or dtype not in TOKEN_DTYPES:
            rule = f"the dtype of a corpus must be one of {', '.join(TOKEN_DTYPES)}"
            raise input_error(rule, repr(dtype), "prepare the corpus again")
        preparation = plain["preparation"]
        sources = tuple(SourceRecord.from_plain(source) for source in preparation["sources"])
        splits = {name: SplitRecord.from_plain(split) for name, split in plain["splits"].items()}
        return cls(
            preparation=Preparation(**{**preparation, "sources": sources}),
            tokeniser=TokeniserRecord(**plain["tokeniser"]),
            dtype=dtype,
            splits=splits,
        )
