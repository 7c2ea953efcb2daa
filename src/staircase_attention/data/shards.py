"""Files of tokens that only ever grow, and can be cut back to the last durable point."""

import hashlib
import os
import zlib
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from staircase_attention.data.manifest import ArrayRecord, Counts, SplitRecord
from staircase_attention.data.tokenisers import Tokens

STARTS_DTYPE = np.dtype("<u8")
READ_BYTES = 1 << 20


class GrowingFile:
    """A file that is written from front to back, whose checksum is known at any time."""

    def __init__(self, path: Path, num_bytes: int = 0) -> None:
        """Open it and cut it to so many bytes; what was written after them is gone."""
        self.path, self.num_bytes = path, 0
        self._digest = hashlib.sha256()
        self._file = path.open("r+b" if path.exists() else "w+b")
        self._file.truncate(num_bytes)
        while data := self._file.read(READ_BYTES):
            self._digest.update(data)
            self.num_bytes += len(data)
        assert self.num_bytes == num_bytes, f"{path} has lost bytes that were written"

    def write(self, data: bytes) -> None:
        """Append."""
        self._file.write(data)
        self._digest.update(data)
        self.num_bytes += len(data)

    def sync(self) -> None:
        """Make all that was written last, even if the machine stops."""
        self._file.flush()
        os.fsync(self._file.fileno())

    def finish(self) -> str:
        """Sync and close; the checksum."""
        self.sync()
        self.close()
        return self._digest.hexdigest()

    def close(self) -> None:
        """Let go of the file, as it is."""
        self._file.close()


class SplitWriter:
    """Writes one split: tokens in shards of at most so many, and where documents begin."""

    def __init__(
        self,
        folder: Path,
        name: str,
        *,
        dtype: np.dtype[Any],
        shard_tokens: int,
        state: Mapping[str, Any] | None = None,
    ) -> None:
        """Begin a split, or go on from the state that `durable_state` gave."""
        state = state or {"counts": {}, "crc32": 0, "shards": [], "num_open_tokens": 0}
        self._folder, self._name, self._dtype = folder, name, dtype
        self._shard_tokens = shard_tokens
        self.counts = Counts(**state["counts"])
        self._crc32: int = state["crc32"]
        self._closed = [ArrayRecord(**shard) for shard in state["shards"]]
        self._num_open_tokens: int = state["num_open_tokens"]
        self._shard = self._open_shard()
        self._remove_later_shards()
        self._starts = GrowingFile(
            folder / f"{name}-documents.bin", self.counts.num_documents * STARTS_DTYPE.itemsize
        )
        self._waiting: list[Tokens] = []
        self._new_starts: list[int] = []

    def begin_document(self) -> None:
        """Note that what is added next begins a document."""
        self._new_starts.append(self.counts.num_tokens)
        self.counts.num_documents += 1

    def add(self, data: bytes, *encoded: Tokens) -> None:
        """Add some text, as it is and encoded."""
        self._crc32 = zlib.crc32(data, self._crc32)
        self._waiting += encoded
        self.counts.num_bytes += len(data)
        self.counts.num_tokens += sum(map(len, encoded))

    def write(self) -> None:
        """Hand what was added over to the system."""
        self._starts.write(np.array(self._new_starts, dtype=STARTS_DTYPE).tobytes())
        self._new_starts.clear()
        if not self._waiting:
            return
        tokens = np.concatenate(self._waiting, dtype=self._dtype, casting="unsafe")
        self._waiting.clear()
        while len(tokens):
            room = self._shard_tokens - self._num_open_tokens
            part, tokens = tokens[:room], tokens[room:]
            self._shard.write(part.tobytes())
            self._num_open_tokens += len(part)
            if self._num_open_tokens == self._shard_tokens:
                self._close_shard()
                self._shard = self._open_shard()

    def durable_state(self) -> dict[str, Any]:
        """Make all that was added last; the plain data from which a new writer can go on."""
        self.write()
        self._shard.sync()
        self._starts.sync()
        return {
            "counts": asdict(self.counts),
            "crc32": self._crc32,
            "shards": [asdict(shard) for shard in self._closed],
            "num_open_tokens": self._num_open_tokens,
        }

    def finish(self) -> SplitRecord:
        """Close all files; what there is."""
        self.write()
        self._close_shard()
        if not self._closed[-1].num_items and len(self._closed) > 1:
            (self._folder / self._closed.pop().file).unlink()
        starts = ArrayRecord(
            file=self._starts.path.name,
            num_items=self.counts.num_documents,
            sha256=self._starts.finish(),
        )
        return SplitRecord(
            shards=tuple(self._closed), starts=starts, text_crc32=self._crc32, **asdict(self.counts)
        )

    def close(self) -> None:
        """Let go of the files, as they are."""
        self._shard.close()
        self._starts.close()

    def _open_shard(self) -> GrowingFile:
        path = self._folder / f"{self._name}-{len(self._closed):05d}.bin"
        return GrowingFile(path, self._num_open_tokens * self._dtype.itemsize)

    def _remove_later_shards(self) -> None:
        """Those that were begun after the state was taken."""
        known = {*(shard.file for shard in self._closed), self._shard.path.name}
        for path in self._folder.glob(f"{self._name}-[0-9]*.bin"):
            if path.name not in known:
                path.unlink()

    def _close_shard(self) -> None:
        record = ArrayRecord(
            file=self._shard.path.name,
            num_items=self._num_open_tokens,
            sha256=self._shard.finish(),
        )
        self._closed.append(record)
        self._num_open_tokens = 0
