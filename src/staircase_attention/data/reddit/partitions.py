"""Read dumps, and store their comments in partitions: every thread is whole within one file.

A partition is an Arrow stream to which batches are appended. `read.json` records how far each dump
was read, and how long every partition was then. After a kill, partitions are cut back to these
lengths and reading resumes, so that every line is stored exactly once.
"""

import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from numpy.typing import NDArray

from staircase_attention.data.compression import DamagedFileError, open_decompressed
from staircase_attention.data.jobs import PreparationProgress, in_order
from staircase_attention.data.reddit.cleaning import Cleaning
from staircase_attention.data.reddit.comments import SCHEMA, LineCounts, parse_lines
from staircase_attention.files import read_json, write_json

# Lines that are parsed at a time.
BLOCK_BYTES = 1 << 20
# Longer lines are skipped. No comment is that long, but a line of a corrupt file may be.
LONGEST_LINE = 4 << 20
# Comments that are held before they are stored.
BUFFER_BYTES = 128 << 20
# Time after which they are stored in any case: the most work that a kill can cost.
COMMIT_SECONDS = 10.0
# Bytes of a comment besides its text, approximately.
ROW_BYTES = 45
GOLDEN_RATIO = np.uint64(0x9E3779B97F4A7C15)
HALF = np.uint64(32)


@dataclass(frozen=True, kw_only=True, slots=True)
class DumpPosition:
    """How far a dump has been read."""

    offset: int = 0  # Decompressed bytes.
    num_stored: int = 0  # Bytes of the file as stored, approximately.
    lines: LineCounts
    is_done: bool = False
    damage: str | None = None  # Why the rest of the dump cannot be read.


class ThreadGroup(NamedTuple):
    """Threads that are held in memory together: a partition, or a part of a large one."""

    partition: int
    part: int
    num_parts: int
    num_bytes: int


class Partitions:
    """Comments on disk, as of the last commit."""

    def __init__(self, folder: Path, num_partitions: int, num_dumps: int) -> None:
        self.paths = [folder / f"{number:05d}.arrow" for number in range(num_partitions)]
        self.sizes, self.num_bytes = [0] * num_partitions, [0] * num_partitions
        self.dumps = [DumpPosition(lines=LineCounts())] * num_dumps
        self._record = folder / "read.json"
        if self._record.exists():
            record = read_json(self._record)
            self.sizes, self.num_bytes = record["sizes"], record["num_bytes"]
            for number, dump in enumerate(record["dumps"]):
                lines = LineCounts(**dump.pop("lines"))
                self.dumps[number] = DumpPosition(lines=lines, **dump)

    def truncate(self) -> None:
        """Remove what was appended after the last commit."""
        for path, size in zip(self.paths, self.sizes, strict=True):
            if path.exists():
                os.truncate(path, size)

    def commit(self, batches: Sequence[pa.RecordBatch], number: int, dump: DumpPosition) -> None:
        """Append comments, then record how far their dump was read."""
        comments = pa.Table.from_batches(batches, SCHEMA)
        high = _hashed(comments["thread"]) >> HALF
        partitions = (high * np.uint64(len(self.paths)) >> HALF).astype(np.int64)
        comments = comments.take(np.argsort(partitions, kind="stable"))
        counts = np.bincount(partitions, minlength=len(self.paths))
        starts = np.cumsum(counts) - counts
        for partition in np.flatnonzero(counts).tolist():
            part = comments.slice(starts[partition], counts[partition]).combine_chunks()
            with self.paths[partition].open("ab") as file:
                if not self.sizes[partition]:
                    file.write(SCHEMA.serialize())
                file.writelines(batch.serialize() for batch in part.to_batches())
                self.sizes[partition] = file.tell()
            text_bytes = pc.sum(pc.binary_length(part["text"])).as_py() or 0
            self.num_bytes[partition] += text_bytes + ROW_BYTES * len(part)
        # One call makes all partitions durable; a call for each of thousands takes far longer.
        os.sync()
        self.dumps[number] = dump
        dumps = list(map(asdict, self.dumps))
        record = {"sizes": self.sizes, "num_bytes": self.num_bytes, "dumps": dumps}
        write_json(self._record, record)

    def groups(self, largest_bytes: int) -> list[ThreadGroup]:
        """All threads, in the order in which they are written.

        The length of a file depends on the number of commits, the bytes of its comments do not.
        """
        groups = []
        for partition, size in enumerate(self.num_bytes):
            num_parts = max(-(-size // largest_bytes), 1)
            for part in range(num_parts):
                groups.append(ThreadGroup(partition, part, num_parts, size // num_parts))
        return groups

    def read(self, group: ThreadGroup) -> pa.Table:
        """The comments of a group, in the order of the dumps and their lines."""
        if not self.sizes[group.partition]:
            return SCHEMA.empty_table()
        with pa.memory_map(str(self.paths[group.partition])) as file:
            stream = pa.ipc.open_stream(file)
            if group.num_parts == 1:
                return stream.read_all()
            batches = [batch.filter(_is_in_part(batch["thread"], group)) for batch in stream]
            return pa.Table.from_batches(batches, SCHEMA)


def _hashed(threads: pa.Array | pa.ChunkedArray) -> NDArray[np.uint64]:
    """A hash of each thread. The high half chooses the partition, the low half the part of it."""
    hashed: NDArray[np.uint64] = threads.to_numpy() * GOLDEN_RATIO
    return hashed


def _is_in_part(threads: pa.Array, group: ThreadGroup) -> pa.Array:
    low = _hashed(threads) & np.uint64(0xFFFFFFFF)
    return pa.array(low * np.uint64(group.num_parts) >> HALF == group.part)


def line_batches(path: Path, offset: int) -> Iterator[tuple[bytes, DumpPosition]]:
    """Lines from an offset on, and the position after them; the counts are of these lines only.

    Memory is bounded, also where a line never ends. Reading ends where a file is damaged.
    """
    damage, is_done = None, False
    with open_decompressed(path) as file:
        file.skip_to(offset)
        while not is_done:
            lines: list[bytes] = []
            num_bytes = num_overlong = 0
            try:
                while num_bytes < BLOCK_BYTES and (line := file.readline(LONGEST_LINE)):
                    num_bytes += len(line)
                    if len(line) < LONGEST_LINE or line.endswith(b"\n"):
                        lines.append(line)
                        continue
                    num_overlong += 1
                    while line and not line.endswith(b"\n"):
                        line = file.readline(LONGEST_LINE)
            except DamagedFileError as error:
                damage = str(error)
            is_done = num_bytes < BLOCK_BYTES
            after = DumpPosition(
                offset=file.tell(),
                num_stored=path.stat().st_size if is_done else file.num_stored_read,
                lines=LineCounts(overlong=num_overlong),
                is_done=is_done,
                damage=damage,
            )
            yield b"".join(lines), after


def _parse(
    batch: tuple[bytes, DumpPosition], cleaning: Cleaning
) -> tuple[DumpPosition, pa.RecordBatch]:
    content, after = batch
    counts, comments = parse_lines(content, cleaning)
    return replace(after, lines=LineCounts.total([after.lines, counts])), comments


def read_dumps(
    paths: Sequence[Path],
    partitions: Partitions,
    cleaning: Cleaning,
    pool: Executor | None,
    progress: PreparationProgress,
) -> None:
    """Store the comments of all dumps, from where an earlier process stopped."""
    if all(dump.is_done for dump in partitions.dumps):
        return
    partitions.truncate()
    progress.say("reading the dumps")
    num_done = sum(dump.num_stored for dump in partitions.dumps)
    progress.begin(sum(path.stat().st_size for path in paths), num_done)
    num_comments = sum(dump.lines.comments for dump in partitions.dumps)
    for number, path in enumerate(paths):
        dump, last_commit = partitions.dumps[number], time.monotonic()
        buffer: list[pa.RecordBatch] = []
        batches = () if dump.is_done else line_batches(path, dump.offset)
        for after, comments in in_order(pool, partial(_parse, cleaning=cleaning), batches):
            buffer.append(comments)
            num_comments += len(comments)
            num_done += after.num_stored - dump.num_stored
            progress.advance(num_done, {"comments": num_comments})
            dump = replace(after, lines=LineCounts.total([dump.lines, after.lines]))
            is_full = sum(batch.nbytes for batch in buffer) >= BUFFER_BYTES
            is_late = time.monotonic() - last_commit >= COMMIT_SECONDS
            if dump.is_done or is_full or is_late:
                partitions.commit(buffer, number, dump)
                buffer, last_commit = [], time.monotonic()
