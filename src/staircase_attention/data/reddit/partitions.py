"""Read dumps, and store their comments in partitions: every thread is whole within one file.

A partition is an Arrow stream to which batches are appended. `read.json` records how far each dump
was read, and how long every partition was then. After a kill, partitions are cut back to these
lengths and reading resumes, so that every line is stored exactly once.
"""

import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]

from staircase_attention.data.compression import open_decompressed, whole_lines
from staircase_attention.data.jobs import PreparationProgress, in_order
from staircase_attention.data.reddit.cleaning import Cleaning
from staircase_attention.data.reddit.comments import SCHEMA, parse_lines
from staircase_attention.files import read_json, write_json

# Lines that are parsed at a time.
BLOCK_BYTES = 1 << 20
# Comments that are held before they are stored.
BUFFER_BYTES = 128 << 20
# Time after which they are stored in any case: the most work that a kill can cost.
COMMIT_SECONDS = 10.0
GOLDEN_RATIO = np.uint64(0x9E3779B97F4A7C15)
HALF = np.uint64(32)


@dataclass(frozen=True, kw_only=True, slots=True)
class DumpPosition:
    """How far a dump has been read."""

    lines: Mapping[str, int] = field(default_factory=dict)
    """Every line once: 'comments', or by its flaw."""
    num_stored: int = 0
    """Bytes of the file as stored, approximately."""
    is_done: bool = False
    damage: str | None = None
    """Why the rest of the dump cannot be read."""


Batch = tuple[list[bytes | None], DumpPosition]


class Partitions:
    """Comments on disk, as of the last commit."""

    def __init__(self, folder: Path, num_partitions: int, num_dumps: int) -> None:
        self.paths = [folder / f"{number:05d}.arrow" for number in range(num_partitions)]
        self.sizes = [0] * num_partitions
        self.dumps = [DumpPosition()] * num_dumps
        self._record = folder / "read.json"
        if self._record.exists():
            record = read_json(self._record)
            self.sizes = record["sizes"]
            self.dumps = [DumpPosition(**dump) for dump in record["dumps"]]

    def truncate(self) -> None:
        """Remove what was appended after the last commit."""
        for path, size in zip(self.paths, self.sizes, strict=True):
            if path.exists():
                os.truncate(path, size)

    def commit(self, batches: Sequence[pa.RecordBatch], number: int, dump: DumpPosition) -> None:
        """Append comments, then record how far their dump was read."""
        comments = pa.Table.from_batches(batches, SCHEMA)
        # The high half of a hash of the thread chooses the partition.
        high = comments["thread"].to_numpy() * GOLDEN_RATIO >> HALF
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
        # One call makes all partitions durable; a call for each of thousands takes far longer.
        os.sync()
        self.dumps[number] = dump
        write_json(self._record, {"sizes": self.sizes, "dumps": list(map(asdict, self.dumps))})

    def read(self, number: int) -> pa.Table:
        """The comments of a partition, in the order of the dumps and their lines."""
        if not self.sizes[number]:
            return SCHEMA.empty_table()
        with pa.memory_map(str(self.paths[number])) as file:
            return pa.ipc.open_stream(file).read_all()


def line_batches(path: Path, num_done: int, *, allow_damaged: bool) -> Iterator[Batch]:
    """Lines after the first `num_done`, and the position after them, without their counts."""
    with open_decompressed(path, allow_damaged=allow_damaged) as file:
        batch: list[bytes | None] = []
        num_bytes = 0
        for line in islice(whole_lines(file), num_done, None):
            batch.append(line)
            num_bytes += len(line or b"")
            if num_bytes >= BLOCK_BYTES:
                yield batch, DumpPosition(num_stored=file.num_stored_read)
                batch, num_bytes = [], 0
        num_stored = path.stat().st_size
        yield batch, DumpPosition(num_stored=num_stored, is_done=True, damage=file.damage)


def _parse(batch: Batch, cleaning: Cleaning) -> tuple[DumpPosition, pa.RecordBatch]:
    lines, after = batch
    counts, comments = parse_lines(lines, cleaning)
    return replace(after, lines=dict(counts)), comments


def read_dumps(
    paths: Sequence[Path],
    partitions: Partitions,
    cleaning: Cleaning,
    pool: Executor | None,
    progress: PreparationProgress,
    *,
    allow_damaged: bool,
) -> None:
    """Store the comments of all dumps, from where an earlier process stopped."""
    if all(dump.is_done for dump in partitions.dumps):
        return
    partitions.truncate()
    progress.say("reading the dumps")
    num_done = sum(dump.num_stored for dump in partitions.dumps)
    progress.begin(sum(path.stat().st_size for path in paths), num_done)
    num_comments = sum(dump.lines.get("comments", 0) for dump in partitions.dumps)
    for number, path in enumerate(paths):
        dump, last_commit = partitions.dumps[number], time.monotonic()
        if dump.is_done:
            continue
        buffer: list[pa.RecordBatch] = []
        batches = line_batches(path, sum(dump.lines.values()), allow_damaged=allow_damaged)
        for after, comments in in_order(pool, partial(_parse, cleaning=cleaning), batches):
            buffer.append(comments)
            num_comments += len(comments)
            num_done += after.num_stored - dump.num_stored
            lines = Counter(dump.lines) + Counter(after.lines)
            dump = replace(after, lines=dict(lines))
            progress.advance(num_done, {"comments": num_comments})
            is_full = sum(batch.nbytes for batch in buffer) >= BUFFER_BYTES
            is_late = time.monotonic() - last_commit >= COMMIT_SECONDS
            if dump.is_done or is_full or is_late:
                partitions.commit(buffer, number, dump)
                buffer, last_commit = [], time.monotonic()
