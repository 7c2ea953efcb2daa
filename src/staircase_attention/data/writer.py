"""Writes the splits of a corpus: files that only grow, and a journal of durable points.

A killed preparation truncates all files to the last durable point, and resumes there.
"""

import json
import os
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

import numpy as np

from staircase_attention.data.byte_pair import Tokens
from staircase_attention.data.corpus import STARTS_DTYPE, sha256_of
from staircase_attention.data.documents import SPLITS
from staircase_attention.data.manifest import ArrayRecord, Counts, SplitRecord
from staircase_attention.data.mixture import MixturePosition, Piece
from staircase_attention.data.tokenisers import Tokeniser
from staircase_attention.files import write_json

JOURNAL = "journal.json"


class CorpusWriter:
    """Writes splits into a folder, and resumes from the last durable point that it finds there."""

    def __init__(
        self, folder: Path, tokeniser: Tokeniser, *, num_sources: int, shard_tokens: int
    ) -> None:
        self._folder = folder
        self.dtype = dtype_for(tokeniser.vocab_size)
        end = tokeniser.end_symbol
        self._end: Tokens = np.array([] if end is None else [end], dtype=self.dtype)
        journal = folder / JOURNAL
        state = json.loads(journal.read_text()) if journal.exists() else None
        self.position = MixturePosition.from_plain(state["place"]) if state else None
        """Where to resume the mixture; None for its start."""
        self._is_inside_document: bool = state["is_open"] if state else False
        self.counts = [
            {split: Counts(**(state["counts"][source][split] if state else {})) for split in SPLITS}
            for source in range(num_sources)
        ]
        """For each source, what it has given to each split."""
        self._writers = {
            split: _SplitWriter(
                folder,
                split,
                dtype=self.dtype,
                shard_tokens=shard_tokens,
                state=state["splits"][split] if state else None,
            )
            for split in SPLITS
        }

    @property
    def facts(self) -> dict[str, int]:
        """Counts so far."""
        counts = [writer.counts for writer in self._writers.values()]
        return {
            "documents": sum(count.num_documents for count in counts),
            "tokens": sum(count.num_tokens for count in counts),
        }

    def add(self, pieces: Sequence[Piece], encoded: Sequence[Tokens]) -> None:
        """Append pieces and their tokens."""
        for piece, tokens in zip(pieces, encoded, strict=True):
            writer = self._writers[piece.split]
            if not self._is_inside_document:
                writer.start_document()
            parts = [tokens, self._end] if piece.is_last else [tokens]
            writer.add(piece.data, parts)
            counts = self.counts[piece.source][piece.split]
            counts.num_documents += not self._is_inside_document
            counts.num_bytes += len(piece.data)
            counts.num_tokens += sum(map(len, parts))
            self._is_inside_document = not piece.is_last
        for writer in self._writers.values():
            writer.write()

    def make_durable(self, position: MixturePosition) -> None:
        """Save this point: a preparation that is killed later resumes here, without loss."""
        state = {
            "splits": {name: writer.durable_state() for name, writer in self._writers.items()},
            "counts": [
                {split: asdict(count) for split, count in counts.items()} for counts in self.counts
            ],
            "is_open": self._is_inside_document,
            "place": asdict(position),
        }
        write_json(self._folder / JOURNAL, state)

    def close(self) -> None:
        """Close all files as they are."""
        for writer in self._writers.values():
            writer.close()

    def finish(self) -> dict[str, SplitRecord]:
        """Close all files, and remove those of splits without tokens."""
        records = {name: writer.finish() for name, writer in self._writers.items()}
        for name, record in records.items():
            if not record.num_tokens:
                for path in self._folder.glob(f"{name}-*.bin"):
                    path.unlink()
        return {name: record for name, record in records.items() if record.num_tokens}


def dtype_for(vocab_size: int) -> np.dtype[Any]:
    """The narrowest width that holds all tokens.

    >>> [dtype_for(size).name for size in (256, 257, 50_257, 100_000)]
    ['uint8', 'uint16', 'uint16', 'uint32']
    """
    return np.dtype(np.min_scalar_type(vocab_size - 1)).newbyteorder("<")


class _SplitWriter:
    """Writes one split: tokens in shards of at most `shard_tokens`, and where documents start."""

    def __init__(
        self,
        folder: Path,
        name: str,
        *,
        dtype: np.dtype[Any],
        shard_tokens: int,
        state: Mapping[str, Any] | None = None,
    ) -> None:
        """Start a split, or resume from what `durable_state` returned."""
        state = state or {"counts": {}, "crc32": 0, "shards": [], "num_open_tokens": 0}
        self._folder, self._name, self._dtype = folder, name, dtype
        self._shard_tokens = shard_tokens
        self.counts = Counts(**state["counts"])
        self._crc32: int = state["crc32"]
        self._finished = [ArrayRecord(**shard) for shard in state["shards"]]
        self._num_open_tokens: int = state["num_open_tokens"]
        # A shard that was started after the durable point is emptied when its turn comes again.
        self._shard = self._open_shard()
        starts_bytes = self.counts.num_documents * STARTS_DTYPE.itemsize
        self._starts = open_truncated(folder / f"{name}-documents.bin", starts_bytes)
        self._new_tokens: list[Tokens] = []
        self._new_starts: list[int] = []

    def start_document(self) -> None:
        """Note that the next text starts a document."""
        self._new_starts.append(self.counts.num_tokens)
        self.counts.num_documents += 1

    def add(self, data: bytes, encoded: Sequence[Tokens]) -> None:
        """Append some text and its tokens."""
        self._crc32 = zlib.crc32(data, self._crc32)
        self._new_tokens += encoded
        self.counts.num_bytes += len(data)
        self.counts.num_tokens += sum(map(len, encoded))

    def write(self) -> None:
        """Write what was added."""
        self._starts.write(np.array(self._new_starts, dtype=STARTS_DTYPE).tobytes())
        self._new_starts.clear()
        if not self._new_tokens:
            return
        tokens = np.concatenate(self._new_tokens, dtype=self._dtype, casting="unsafe")
        self._new_tokens.clear()
        while len(tokens):
            room = self._shard_tokens - self._num_open_tokens
            part, tokens = tokens[:room], tokens[room:]
            self._shard.write(part.tobytes())
            self._num_open_tokens += len(part)
            if self._num_open_tokens == self._shard_tokens:
                self._finish_shard()
                self._shard = self._open_shard()

    def durable_state(self) -> dict[str, Any]:
        """Write and sync everything; the plain data from which a new writer can resume."""
        self.write()
        _sync(self._shard)
        _sync(self._starts)
        return {
            "counts": asdict(self.counts),
            "crc32": self._crc32,
            "shards": [asdict(shard) for shard in self._finished],
            "num_open_tokens": self._num_open_tokens,
        }

    def finish(self) -> SplitRecord:
        """Close all files and describe them."""
        self.write()
        if self._num_open_tokens or not self._finished:
            self._finish_shard()
        else:
            self._shard.close()
            (self._folder / self._shard_name).unlink()
        return SplitRecord(
            shards=tuple(self._finished),
            starts=_finished_array(self._starts, self.counts.num_documents),
            text_crc32=self._crc32,
            **asdict(self.counts),
        )

    def close(self) -> None:
        """Close the files as they are."""
        self._shard.close()
        self._starts.close()

    @property
    def _shard_name(self) -> str:
        return f"{self._name}-{len(self._finished):05d}.bin"

    def _open_shard(self) -> IO[bytes]:
        num_bytes = self._num_open_tokens * self._dtype.itemsize
        return open_truncated(self._folder / self._shard_name, num_bytes)

    def _finish_shard(self) -> None:
        self._finished.append(_finished_array(self._shard, self._num_open_tokens))
        self._num_open_tokens = 0


def open_truncated(path: Path, num_bytes: int) -> IO[bytes]:
    """Open a file for appending after its first `num_bytes`; the rest of it is dropped."""
    file = path.open("ab")
    assert file.tell() >= num_bytes, f"{path} has lost bytes that were synced"
    file.truncate(num_bytes)
    return file


def _sync(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())


def _finished_array(file: IO[bytes], num_items: int) -> ArrayRecord:
    """Sync and close a file of integers. Its checksum is that of the bytes on the disk."""
    _sync(file)
    file.close()
    path = Path(file.name)
    return ArrayRecord(file=path.name, num_items=num_items, sha256=sha256_of(path))
