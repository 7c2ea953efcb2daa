"""The manifest of a corpus: what it was made from, and which files it consists of."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from staircase_attention.checks import check_choice, input_error
from staircase_attention.files import write_json

FORMAT = 1
MANIFEST = "manifest.json"
TOKEN_DTYPES = {"uint8": "<u1", "uint16": "<u2", "uint32": "<u4"}
"""The token widths that a manifest may name. Numpy would take 'O' for pointers into memory."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FileRecord:
    """A file that a source was read from."""

    path: str
    """As the user named it."""
    num_bytes: int
    """Its size, as stored."""
    sha256: str


@dataclass(slots=True)
class Counts:
    """Sizes of a split, or of a source's share of it."""

    num_documents: int = 0
    num_bytes: int = 0
    """Bytes of text as UTF-8, without end symbols."""
    num_tokens: int = 0
    """With end symbols."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceRecord:
    """A source, and what it contributed."""

    name: str
    weight: float
    """Passes over its training documents."""
    parameters: Mapping[str, Any]
    """How it was read."""
    files: tuple[FileRecord, ...]
    counts: Mapping[str, Counts] = field(default_factory=dict)
    """What it gave to each split; a document that comes twice counts twice."""
    skipped: Mapping[str, int] = field(default_factory=dict)
    """What could not be used."""

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> "SourceRecord":
        """The record of a JSON file."""
        files = tuple(FileRecord(**file) for file in plain["files"])
        counts = {split: Counts(**counts) for split, counts in plain["counts"].items()}
        return cls(**{**plain, "files": files, "counts": counts})


@dataclass(frozen=True, kw_only=True, slots=True)
class ArrayRecord:
    """A file of little-endian integers of one width, without a header."""

    file: str
    """Its name in the folder."""
    num_items: int
    sha256: str


@dataclass(frozen=True, kw_only=True, slots=True)
class SplitRecord:
    """Train, valid or test."""

    shards: tuple[ArrayRecord, ...]
    """Concatenated, they are the tokens of the split."""
    starts: ArrayRecord
    """Where in the split each document starts, as uint64."""
    num_documents: int
    num_bytes: int
    """Bytes of text, the denominator of bits per byte."""
    num_tokens: int
    """With end symbols."""
    text_crc32: int
    """Of the concatenated text of all documents; decoding must reproduce it."""

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> "SplitRecord":
        """The record of a JSON file."""
        shards = tuple(ArrayRecord(**shard) for shard in plain["shards"])
        return cls(**{**plain, "shards": shards, "starts": ArrayRecord(**plain["starts"])})


@dataclass(frozen=True, kw_only=True, slots=True)
class TokeniserRecord:
    """The tokeniser of a corpus."""

    name: str
    """Its kind and size."""
    vocab_size: int
    """Every token is below it."""
    end_symbol: int | None
    """The token after every document; None if there is none."""
    is_lossless: bool
    """Whether decoding is certain to reproduce the text."""
    files: Mapping[str, str]
    """Its files in the folder `tokeniser`, each with its SHA-256."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Preparation:
    """All that a corpus depends on: the same preparation always gives the same bytes."""

    kind: str
    """'enwik8', 'text' or 'reddit'."""
    sources: tuple[SourceRecord, ...]
    parameters: Mapping[str, Any]
    """How it is split, encoded and stored."""

    def without_results(self) -> "Preparation":
        """What was known before it started."""
        return replace(
            self, sources=tuple(replace(one, counts={}, skipped={}) for one in self.sources)
        )

    def as_plain(self) -> dict[str, Any]:
        """As JSON reads it back."""
        plain: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return plain


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """All that is known about a corpus."""

    preparation: Preparation
    """Where it comes from, with the results of each source."""
    tokeniser: TokeniserRecord
    dtype: str
    """The width of a token, a key of TOKEN_DTYPES."""
    splits: Mapping[str, SplitRecord]
    format: int = FORMAT
    """The version of this format."""

    @classmethod
    def read(cls, folder: Path) -> "Manifest":
        """The manifest of a folder."""
        path = folder / MANIFEST
        try:
            plain = json.loads(path.read_text())
            if plain["format"] != FORMAT:
                rule, received = f"a corpus must have format {FORMAT}", plain["format"]
                raise input_error(rule, received, "prepare it again, or use another version")
            check_choice("the dtype of a corpus", plain["dtype"], TOKEN_DTYPES)
            preparation = plain["preparation"]
            sources = tuple(map(SourceRecord.from_plain, preparation["sources"]))
            return cls(
                preparation=Preparation(**{**preparation, "sources": sources}),
                tokeniser=TokeniserRecord(**plain["tokeniser"]),
                dtype=plain["dtype"],
                splits={
                    name: SplitRecord.from_plain(split) for name, split in plain["splits"].items()
                },
            )
        except (json.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
            rule, received = "a manifest must be as it was written", f"{path} ({error!r})"
            raise input_error(rule, received, "prepare the corpus again") from error

    def write(self, folder: Path) -> None:
        """Make a folder a corpus."""
        write_json(folder / MANIFEST, asdict(self))
