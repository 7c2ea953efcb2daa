"""A prepared corpus: its manifest, its tokeniser, and its splits in memory-mapped files."""

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from staircase_attention import files
from staircase_attention.checks import check_choice, input_error, printable
from staircase_attention.data.tokenisers import Tokeniser, Tokens, load_tokeniser
from staircase_attention.plain import from_plain, to_plain

FORMAT = 1
MANIFEST = "manifest.json"
# The token widths that a manifest may name. Numpy would take 'O' for pointers into memory.
TOKEN_DTYPES = {"uint8": "<u1", "uint16": "<u2", "uint32": "<u4"}
TOKENISER_FOLDER = "tokeniser"
STARTS_DTYPE = np.dtype("<u8")
# Tokens that are decoded at once.
DECODED_TOKENS = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class FileRecord:
    """A file that a source was read from."""

    path: str
    """As the user named it."""
    num_bytes: int
    sha256: str


@dataclass(slots=True)
class Counts:
    """Sizes of a split, or of a source's share of it."""

    num_documents: int = 0
    num_bytes: int = 0
    """Bytes of text as UTF-8, without end symbols."""
    num_tokens: int = 0
    """With end symbols."""

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(
            self.num_documents + other.num_documents,
            self.num_bytes + other.num_bytes,
            self.num_tokens + other.num_tokens,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceRecord:
    """A source, and what it contributed."""

    name: str
    weight: float
    """Passes over its training documents."""
    parameters: Mapping[str, Any]
    files: tuple[FileRecord, ...]
    counts: Mapping[str, Counts] = field(default_factory=dict)
    """What it gave to each split; a document that comes twice counts twice."""
    skipped: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class ArrayRecord:
    """A file of little-endian integers of one width, without a header."""

    file: str
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
        bare = tuple(replace(one, counts={}, skipped={}) for one in self.sources)
        return replace(self, sources=bare)

    def skipped_lines(self) -> Iterator[str]:
        """What could not be used of the sources, in lines for a terminal."""
        for source in self.sources:
            for what, count in source.skipped.items():
                yield printable(f"skipped: {what}: {count:,}")


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

    @classmethod
    def read(cls, folder: Path) -> "Manifest":
        """The manifest of a folder."""
        path = folder / MANIFEST
        with files.as_written("a manifest", path, "prepare the corpus again"):
            plain = files.parse_json(files.read_summed(folder, MANIFEST))
            if plain["format"] != FORMAT:
                rule, received = f"a corpus must have format {FORMAT}", plain["format"]
                raise input_error(rule, received, "prepare it again, or use another version")
            check_choice("the dtype of a corpus", plain["dtype"], TOKEN_DTYPES)
            manifest = from_plain(cls, plain, "manifest")
            for split in manifest.splits.values():
                num_tokens = sum(shard.num_items for shard in split.shards)
                if (num_tokens, split.starts.num_items) != (split.num_tokens, split.num_documents):
                    raise ValueError("its splits do not add up")
            return manifest


def unfinished_folder(corpus: Path) -> Path:
    """Where a corpus is prepared: beside its final folder, which may be linked to.

    >>> unfinished_folder(Path("/data/enwik8"))
    PosixPath('/data/enwik8.unfinished')
    """
    final = corpus.resolve()
    return final.parent / f"{final.name}.unfinished"


class TokenSplit:
    """The tokens of a split, mapped into memory across shards; fast to open, whatever its size."""

    def __init__(
        self, folder: Path, record: SplitRecord, *, dtype: str, end_symbol: int | None
    ) -> None:
        self.record, self.end_symbol = record, end_symbol
        self.dtype: np.dtype[Any] = np.dtype(TOKEN_DTYPES[dtype])
        self.num_tokens = record.num_tokens
        self.num_bytes = record.num_bytes
        self._folder = folder
        self._shards = [_mapped(folder, shard, self.dtype) for shard in record.shards]
        sizes = [shard.num_items for shard in record.shards]
        self._ends = np.cumsum(sizes)
        self._starts = self._ends - sizes

    @cached_property
    def document_starts(self) -> NDArray[np.uint64]:
        """(num_documents,) where in the split each document starts, mapped."""
        return _mapped(self._folder, self.record.starts, STARTS_DTYPE)

    def tokens(self, start: int, stop: int) -> Tokens:
        """The tokens from start up to stop: a view where they lie in one shard."""
        if not 0 <= start <= stop <= self.num_tokens:
            rule = f"tokens must be asked for from 0 to {self.num_tokens}"
            raise input_error(rule, f"{start} to {stop}", "ask for fewer")
        first = int(np.searchsorted(self._ends, start, side="right"))
        parts = []
        for shard, begin in zip(self._shards[first:], self._starts[first:].tolist(), strict=True):
            if begin >= stop:
                break
            parts.append(shard[max(start - begin, 0) : stop - begin])
        if len(parts) == 1:
            return parts[0]
        return np.concatenate(parts) if parts else np.empty(0, dtype=self.dtype)

    def rows(self, starts: NDArray[np.int64], length: int) -> Tokens:
        """(len(starts), length) tokens from each start on; after the last token comes the first."""
        starts = starts % self.num_tokens
        rows = np.empty((len(starts), length), dtype=self.dtype)
        shards = np.searchsorted(self._ends, starts, side="right")
        # Nearly all rows lie in one shard and are copied by one index; the others one by one.
        is_in_one_shard = starts + length <= self._ends[shards]
        for shard in np.unique(shards[is_in_one_shard]).tolist():
            here = np.flatnonzero(is_in_one_shard & (shards == shard))
            # A view with a row per position of the shard; only the rows asked for are copied.
            windows = sliding_window_view(self._shards[shard], length)
            rows[here] = windows[starts[here] - self._starts[shard]]
        for row in np.flatnonzero(~is_in_one_shard).tolist():
            start, filled = int(starts[row]), 0
            while filled < length:
                part = self.tokens(start, min(start + length - filled, self.num_tokens))
                rows[row, filled : filled + len(part)] = part
                start, filled = 0, filled + len(part)
        return rows

    def document(self, number: int) -> Tokens:
        """One document, with its end symbol."""
        start, *following = map(int, self.document_starts[number : number + 2])
        return self.tokens(start, *(following or [self.num_tokens]))


def _mapped(folder: Path, record: ArrayRecord, dtype: np.dtype[Any]) -> NDArray[Any]:
    path, shape = folder / record.file, (record.num_items,)
    mapped: NDArray[Any] = np.memmap(path, dtype=dtype, mode="r", shape=shape)
    # A plain array over the same memory: slicing a memmap takes longer.
    return mapped.view(np.ndarray)


class Corpus:
    """A folder that a preparation has finished."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder, self.manifest = folder, manifest
        self.vocab_size = manifest.tokeniser.vocab_size
        self.splits: Sequence[str] = tuple(manifest.splits)

    @classmethod
    def open(cls, folder: str | Path) -> "Corpus":
        """Open a folder, after a check that all its files are there and have the right sizes."""
        folder = Path(folder)
        if not (folder / MANIFEST).is_file():
            remedy = "prepare it first, see staircase prepare --help"
            if unfinished_folder(folder).is_dir():
                remedy = "run its preparation again to resume it"
            raise input_error("a corpus must have a manifest", f"none in {folder}", remedy)
        manifest = Manifest.read(folder)
        width = np.dtype(TOKEN_DTYPES[manifest.dtype]).itemsize
        for split in manifest.splits.values():
            for record in (*split.shards, split.starts):
                path = files.inside(folder, record.file)
                size = path.stat().st_size if path.is_file() else None
                width_here = STARTS_DTYPE.itemsize if record is split.starts else width
                if size != record.num_items * width_here:
                    rule = f"{path} must have {record.num_items * width_here} bytes"
                    raise input_error(rule, size, "copy it again, or prepare the corpus again")
        return cls(folder, manifest)

    @property
    def checksum(self) -> str:
        """Of its tokeniser and its splits, wherever their text came from."""
        known = self.manifest
        return files.checksum(files.json_bytes(to_plain([known.tokeniser, known.splits])))

    @cached_property
    def tokeniser(self) -> Tokeniser:
        """Encodes and decodes its tokens."""
        folder, record = self.folder / TOKENISER_FOLDER, self.manifest.tokeniser
        for name, sha256 in record.files.items():
            self._check_file(f"{TOKENISER_FOLDER}/{name}", sha256)
        tokeniser = load_tokeniser(folder)
        if (tokeniser.vocab_size, tokeniser.end_symbol) != (record.vocab_size, record.end_symbol):
            rule = f"the tokeniser of {self.folder} must have {record.vocab_size} symbols"
            raise input_error(rule, tokeniser.vocab_size, "prepare the corpus again")
        return tokeniser

    def split(self, name: str) -> TokenSplit:
        """One split."""
        check_choice(f"a split of {self.folder}", name, self.splits)
        return TokenSplit(
            self.folder,
            self.manifest.splits[name],
            dtype=self.manifest.dtype,
            end_symbol=self.manifest.tokeniser.end_symbol,
        )

    def num_bytes(self, name: str, num_tokens: int) -> float:
        """Bytes of text in a split's first tokens; an estimate if the tokeniser is lossy."""
        split = self.split(name)
        if num_tokens < split.num_tokens and self.manifest.tokeniser.is_lossless:
            return sum(map(len, self._decoded(split, num_tokens)))
        return split.num_bytes * num_tokens / max(1, split.num_tokens)

    def verify(self) -> None:
        """Read everything: check all checksums, and that decoding reproduces the text.

        Decoding is checked only for a lossless tokeniser; others do not guarantee it.
        """
        self.verify_files()
        for name in self.splits if self.manifest.tokeniser.is_lossless else ():
            record, crc32, num_bytes = self.manifest.splits[name], 0, 0
            for text in self._decoded(self.split(name), record.num_tokens):
                crc32 = zlib.crc32(text, crc32)
                num_bytes += len(text)
            if (crc32, num_bytes) != (record.text_crc32, record.num_bytes):
                expected = f"{record.num_bytes} bytes of CRC-32 {record.text_crc32}"
                remedy = "report this: encoding has lost something"
                received = f"{num_bytes} of {crc32}"
                raise input_error(f"{name} must decode to {expected}", received, remedy)

    def verify_files(self) -> None:
        """Check all checksums."""
        assert self.tokeniser.vocab_size  # Loading it verifies it.
        for name in self.splits:
            self.verify_split(name)

    def verify_split(self, name: str) -> None:
        """Check the checksums of a split's files."""
        split = self.manifest.splits[name]
        for record in (*split.shards, split.starts):
            self._check_file(record.file, record.sha256)

    def _check_file(self, file: str, sha256: str) -> None:
        with files.as_written("a corpus", self.folder, "copy it again, or prepare it again"):
            found = files.sha256_of(files.inside(self.folder, file))
        if found != sha256:
            rule = f"{self.folder / file} must have the sha256 {sha256}"
            raise input_error(rule, found, "copy it again, or prepare the corpus again")

    def _decoded(self, split: TokenSplit, num_tokens: int) -> Iterator[bytes]:
        """The text of a split's first tokens, in parts."""
        for start in range(0, num_tokens, DECODED_TOKENS):
            stop = min(start + DECODED_TOKENS, num_tokens)
            yield self.tokeniser.decode(split.tokens(start, stop))
