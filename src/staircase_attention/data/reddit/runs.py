"""Runs: comments of one stretch of a dump, sorted into buckets, in a file that is whole.

A run is two files. `00002-00007.run` is the seventh stretch of dump 2: a table of where each
bucket's heads and texts begin, then heads and texts, bucket by bucket. `00002-00007.json` says how
far the dump has been read, and what its lines were. The second is written last, and a run
without it does not exist: so every line of a dump is in exactly one run, whenever a process dies.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from staircase_attention.data.reddit.records import GOLDEN_RATIO, HEAD, Heads, ParsedBatch
from staircase_attention.files import read_json, write_json, write_whole

HEADS_AT_ONCE = 1 << 14
"""Comments whose texts are read together."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunEnd:
    """How far a dump has been read at the end of a run."""

    dump: int
    """Which of the dumps, counted from 0."""
    run: int
    """Which of its runs, counted from 0; -1 before the first."""
    end: int = 0
    """Bytes of the dump, decompressed, that this run and those before it hold."""
    position: int = 0
    """The same in bytes as stored, about."""
    is_last: bool = False
    """Whether the dump is done."""
    damage: str | None = None
    """Why the rest of the dump cannot be read, if so."""
    lines: dict[str, int]
    """What the lines of this run were."""


class RunBuffer:
    """A run that is being gathered."""

    def __init__(self, num_buckets: int) -> None:
        self.heads = [bytearray() for _ in range(num_buckets)]
        self.texts = [bytearray() for _ in range(num_buckets)]
        self.lines: dict[str, int] = {}
        self.num_bytes = 0

    def add(self, batch: ParsedBatch, num_overlong: int) -> None:
        """Take in what the next lines gave."""
        for name, count in {**batch.counts, "overlong": num_overlong}.items():
            self.lines[name] = self.lines.get(name, 0) + count
        for bucket, (heads, texts) in batch.parts.items():
            self.heads[bucket] += heads
            self.texts[bucket] += texts
            self.num_bytes += len(heads) + len(texts)

    def sections(self) -> Iterator[bytearray]:
        """Heads and texts of bucket 0, of bucket 1, and so on."""
        for heads, texts in zip(self.heads, self.texts, strict=True):
            yield heads
            yield texts


class RunFolder:
    """All runs of a preparation."""

    def __init__(self, folder: Path, num_buckets: int) -> None:
        self.folder = folder
        self.num_buckets = num_buckets

    def write(self, buffer: RunBuffer, end: RunEnd) -> None:
        """Make a run last, with the note of how far it goes."""
        sizes = [len(section) for section in buffer.sections()]
        table = np.cumsum([0, *sizes], dtype="<u8") + np.uint64(8 * (len(sizes) + 1))
        write_whole(self._path(end, "run"), table.tobytes(), *buffer.sections())
        write_json(self._path(end, "json"), asdict(end))

    def last(self, dump: int) -> RunEnd:
        """Where to go on with a dump."""
        notes = sorted(self.folder.glob(f"{dump:05d}-*.json"))
        return _run_end(notes[-1]) if notes else RunEnd(dump=dump, run=-1, lines={})

    def ends(self) -> Iterator[RunEnd]:
        """The notes of all runs, in the order of the dumps and of their lines."""
        yield from map(_run_end, sorted(self.folder.glob("*.json")))

    @cached_property
    def paths(self) -> tuple[Path, ...]:
        """The runs, once all are there, in the order of the dumps and of their lines."""
        notes = sorted(self.folder.glob("*.json"))
        return tuple(note.with_suffix(".run") for note in notes)

    def bucket_bytes(self) -> NDArray[np.int64]:
        """(num_buckets,) how much memory each bucket would take."""
        total = np.zeros(self.num_buckets, dtype=np.int64)
        for path in self.paths:
            table = np.fromfile(path, dtype="<u8", count=2 * self.num_buckets + 1)
            starts = table[::2].astype(np.int64)
            total += starts[1:] - starts[:-1]
        return total

    def heads(self, bucket: int, part: int, num_parts: int) -> Heads:
        """Heads of one part of a bucket's threads, in the order of the dumps."""
        parts = []
        for path in self.paths:
            with path.open("rb") as file:
                heads, _ = self._section(file, bucket)
            parts.append(heads[_is_in_part(heads, part, num_parts)])
        return np.concatenate([np.empty(0, dtype=HEAD), *parts])

    def texts(self, bucket: int, part: int, num_parts: int) -> NDArray[np.uint8]:
        """The texts that belong to `heads`, end to end."""
        num_bytes = int(self.heads(bucket, part, num_parts)["num_bytes"].sum(dtype=np.int64))
        texts = np.empty(num_bytes, dtype=np.uint8)
        stop = 0
        for path in self.paths:
            with path.open("rb") as file:
                heads, _ = self._section(file, bucket)
                for found in _texts_in_part(file, heads, part, num_parts):
                    start, stop = stop, stop + found.size
                    texts[start:stop] = found
        assert stop == num_bytes
        return texts

    def _section(self, file: IO[bytes], bucket: int) -> tuple[Heads, int]:
        """The heads of a bucket in one run, and how many bytes of texts follow them."""
        table = np.fromfile(file, dtype="<u8", count=3, offset=16 * bucket)
        first, middle, last = table.tolist()
        file.seek(first)
        return np.fromfile(file, dtype=HEAD, count=(middle - first) // HEAD.itemsize), last - middle

    def _path(self, end: RunEnd, kind: str) -> Path:
        return self.folder / f"{end.dump:05d}-{end.run:05d}.{kind}"


def _run_end(note: Path) -> RunEnd:
    plain: dict[str, Any] = read_json(note)
    return RunEnd(**plain)


def _texts_in_part(
    file: IO[bytes], heads: Heads, part: int, num_parts: int
) -> Iterator[NDArray[np.uint8]]:
    """The texts that follow the heads in a file, without those of other parts, bit by bit."""
    for first in range(0, heads.size, HEADS_AT_ONCE):
        some = heads[first : first + HEADS_AT_ONCE]
        num_bytes = int(some["num_bytes"].sum(dtype=np.int64))
        texts: NDArray[np.uint8] = np.fromfile(file, dtype=np.uint8, count=num_bytes)
        yield texts[np.repeat(_is_in_part(some, part, num_parts), some["num_bytes"])]


def _is_in_part(heads: Heads, part: int, num_parts: int) -> NDArray[np.bool_]:
    """Threads of a bucket that is too large for memory are taken in parts, by other bits."""
    low = (heads["thread"] * np.uint64(GOLDEN_RATIO)) & np.uint64(0xFFFFFFFF)
    is_in_part: NDArray[np.bool_] = (low * np.uint64(num_parts)) >> np.uint64(32) == part
    return is_in_part
