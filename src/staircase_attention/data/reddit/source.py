"""Reddit as a source of documents: prepared on disk once, and restartable at any time.

The comments of all dumps are stored in partitions: every thread is whole within one file. A
partition is an Arrow stream to which batches are appended. `read.json` records how far each dump
was read, and how long every partition was then. After a kill, partitions are cut back to these
lengths and reading resumes, so that every line is stored exactly once.
"""

import hashlib
import json
import os
import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor
from copy import copy
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]

from staircase_attention.checks import check_integer, input_error
from staircase_attention.cores import available_cores, in_order, worker_pool
from staircase_attention.data import compression
from staircase_attention.data.documents import Cursor, Document
from staircase_attention.data.reddit.comments import SCHEMA, Cleaning, parse_lines
from staircase_attention.data.reddit.threads import RedditOptions, documents, rebuild
from staircase_attention.display import Display
from staircase_attention.files import locked, read_json, write_json

# Changes when files in a work folder get another meaning.
FORMAT = 3
FEWEST_PARTITIONS, MOST_PARTITIONS = 16, 1 << 14
# Comments in a partition, if the estimate of their total size is right. It is held in memory.
PARTITION_BYTES = 32 << 20
# Estimated bytes of comments per byte of a dump.
SIZE_IF_PLAIN, SIZE_IF_COMPRESSED = 0.5, 3.0
# Bytes of comments below which another process takes longer to start than it saves.
WORTH_A_WORKER = 4 << 20
# Bytes at the beginning of a dump that identify it.
FINGERPRINT_BYTES = 1 << 16
# Every comment is counted once under one of these two kinds.
WITHOUT_TEXT = ("duplicates", "deleted", "removed", "empty", "bots", "filtered")
WITH_TEXT = ("whole", "below_removed", "below_missing", "in_cycles")
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
    with compression.open_decompressed(path, allow_damaged=allow_damaged) as file:
        batch: list[bytes | None] = []
        num_bytes = 0
        for line in islice(compression.whole_lines(file), num_done, None):
            batch.append(line)
            num_bytes += len(line or b"")
            if num_bytes >= BLOCK_BYTES:
                yield batch, DumpPosition(num_stored=file.raw.num_stored_read)
                batch, num_bytes = [], 0
        num_stored = path.stat().st_size
        yield batch, DumpPosition(num_stored=num_stored, is_done=True, damage=file.raw.damage)


def _parse(batch: Batch, cleaning: Cleaning) -> tuple[DumpPosition, pa.RecordBatch]:
    lines, after = batch
    counts, comments = parse_lines(lines, cleaning)
    return replace(after, lines=dict(counts)), comments


@dataclass(frozen=True, kw_only=True, slots=True)
class RedditReport:
    """All counts of a preparation."""

    lines: Counter[str]
    """Lines of all dumps, each once: 'comments', 'blank', or a flaw: 'not_text' (not UTF-8),
    'not_json', 'not_object', 'incomplete' (no valid id, thread, parent, body or time), 'overlong'.
    """
    comments: Counter[str]
    """Each once, by WITHOUT_TEXT and WITH_TEXT; and 'examples', 'orphans' (the parent is in no
    file, or in another thread) and 'threads'."""


class RedditSource:
    """Comments of Pushshift dumps, each with the path of comments that leads to it.

    The dumps are read once, on all cores and in bounded memory, and their comments stored in the
    work folder, when `report` or `documents` first needs them. A process that is killed loses ten
    seconds of work; the next one resumes.

    The order of documents depends on the dumps only: by a hash of the thread, then by thread, time
    and id.
    """

    name = "reddit"

    def __init__(
        self,
        paths: Sequence[Path | str],
        work_folder: Path | str,
        options: RedditOptions | None = None,
        *,
        allow_damaged: bool = False,
        num_workers: int | None = None,
        progress: Display | None = None,
    ) -> None:
        """Name the dumps and the work folder.

        Args:
            paths: the dumps, plain or compressed. Of comments with the same thread and id the first
                is kept, in the order of the dumps and of their lines.
            work_folder: a folder for this preparation only, with space for half of the decompressed
                dumps. It may be deleted when the corpus is complete.
            options: what an example is, and how it is written.
            allow_damaged: whether a damaged dump is read up to the damage; else it is refused.
            num_workers: worker processes; None for one per core, if there is enough to do.
            progress: receives reports on the preparation.
        """
        if isinstance(paths, Path | str) or not paths:
            rule = "paths must be a list of one dump or more"
            raise input_error(rule, repr(paths), "use for example ['RC_2019-07.zst']")
        self.files: Sequence[Path] = tuple(Path(path) for path in paths)
        for path in self.files:
            if not path.is_file():
                raise input_error("a dump must be a file", path, "check the path")
        self.work_folder = Path(work_folder)
        self.options = options or RedditOptions()
        self.allow_damaged = allow_damaged
        self.parameters: Mapping[str, Any] = asdict(self.options) | {"allow_damaged": allow_damaged}
        self.total_bytes = sum(path.stat().st_size for path in self.files)
        if num_workers is not None:
            check_integer("num_workers", num_workers, minimum=1, example=2)
        self.num_workers = num_workers
        self.progress = progress or Display()
        self._share = (0, 1)

    @cached_property
    def report(self) -> RedditReport:
        """All counts, by a pass over all documents."""
        lines = Counter[str]()
        for dump in self._partitions.dumps:
            lines.update(dump.lines)
        ((_, last),) = deque(self.documents(), maxlen=1)
        comments = Counter(last.place["counts"])
        assert sum(comments[kind] for kind in WITHOUT_TEXT + WITH_TEXT) == lines["comments"]
        return RedditReport(lines=lines, comments=comments)

    def share(self, number: int, count: int) -> "RedditSource":
        """Some partitions. The first share to be read fills the work folder; others wait for it."""
        found = copy(self)
        found._share = (number, count)
        return found

    def documents(self, cursor: Cursor | None = None) -> Iterator[tuple[Document, Cursor]]:
        """The documents after a cursor, or all for None; each with the cursor after it."""
        partitions, mine = self._partitions, self._mine
        place: Mapping[str, Any] = {"partition": mine.start, "document": 0, "counts": {}}
        if cursor is not None:
            place = cursor.place
        num_before, counts = place["document"], Counter[str](place["counts"])
        bytes_each = self.total_bytes / len(partitions.paths)
        for number in range(place["partition"], mine.stop):
            comments, skipped, before = partitions.read(number), self._skipped(counts), dict(counts)
            num_rows = num_documents = 0
            for thread in rebuild(comments, self.options):
                counts.update(thread.counts)
                num_rows += len(thread.rows)
                num_read = int(bytes_each * (number + num_rows / len(comments)))
                for document in documents(thread, self.options):
                    num_documents += 1
                    if num_documents > num_before:
                        place = {"partition": number, "document": num_documents, "counts": before}
                        yield document, Cursor(place=place, num_read=num_read, skipped=skipped)
            counts["duplicates"] += len(comments) - num_rows
            num_before = 0
            # Without text it only reports a position.
            place = {"partition": number + 1, "document": 0, "counts": dict(counts)}
            num_read, skipped = int(bytes_each * (number + 1)), self._skipped(counts)
            yield Document(text=""), Cursor(place=place, num_read=num_read, skipped=skipped)

    def _skipped(self, counts: Counter[str]) -> dict[str, int]:
        """What could not be used, in words; only counts above 0."""
        words = Counter[str]()
        # Lines belong to no partition: they are counted with the first one.
        dumps = zip(self.files, self._partitions.dumps, strict=True)
        for path, dump in dumps if 0 in self._mine else ():
            others = sum(dump.lines.get(kind, 0) for kind in ("comments", "blank", "overlong"))
            words[f"broken lines in {path.name}"] += sum(dump.lines.values()) - others
            words[f"{compression.OVERLONG} in {path.name}"] += dump.lines.get("overlong", 0)
            words[f"damage ({dump.damage}) in {path.name}"] += dump.damage is not None
        for kind in WITHOUT_TEXT:
            words[f"comments: {kind}"] = counts[kind]
        num_with_text = sum(counts[kind] for kind in WITH_TEXT)
        words["comments: no whole path"] = num_with_text - counts["examples"]
        return dict(+words)

    @property
    def _mine(self) -> range:
        number, count = self._share
        return range(*(len(self._partitions.paths) * end // count for end in (number, number + 1)))

    @cached_property
    def _partitions(self) -> Partitions:
        """Read what is not read yet."""
        sizes = [
            path.stat().st_size
            * (SIZE_IF_COMPRESSED if compression.compression_of(path) else SIZE_IF_PLAIN)
            for path in self.files
        ]
        size = int(sum(sizes))
        num_workers = self.num_workers or min(available_cores(), size // WORTH_A_WORKER + 1)
        num_partitions = min(max(size // PARTITION_BYTES, FEWEST_PARTITIONS), MOST_PARTITIONS)
        dumps = [_description(path) for path in self.files]
        plan = [FORMAT, dumps, asdict(self.options.cleaning)]
        content = json.dumps(plan, sort_keys=True).encode()
        digest = hashlib.blake2b(content, digest_size=6).hexdigest()
        folder = self.work_folder / f"partitions-{digest}"
        folder.mkdir(parents=True, exist_ok=True)
        # Workers come first: forked later they would hold the lock too, for a moment after a kill.
        with worker_pool(num_workers) as pool, locked(folder, wait=self._share[1] > 1):
            partitions = Partitions(folder, num_partitions, len(self.files))
            if not all(dump.is_done for dump in partitions.dumps):
                self._read_dumps(partitions, pool)
        for path, dump in zip(self.files, partitions.dumps, strict=True):
            # An earlier preparation may have allowed what this one does not.
            if dump.damage is not None and not self.allow_damaged:
                raise compression.DamagedFileError(path, dump.damage)
        return partitions

    def _read_dumps(self, partitions: Partitions, pool: Executor | None) -> None:
        """Store the comments of all dumps, from where an earlier process stopped."""
        partitions.truncate()
        self.progress.say("reading the dumps")
        num_done = sum(dump.num_stored for dump in partitions.dumps)
        self.progress.begin("", num_done, self.total_bytes)
        num_comments = sum(dump.lines.get("comments", 0) for dump in partitions.dumps)
        parse = partial(_parse, cleaning=self.options.cleaning)
        for number, path in enumerate(self.files):
            dump, last_commit = partitions.dumps[number], time.monotonic()
            if dump.is_done:
                continue
            buffer: list[pa.RecordBatch] = []
            num_lines = sum(dump.lines.values())
            batches = line_batches(path, num_lines, allow_damaged=self.allow_damaged)
            for after, comments in in_order(pool, parse, batches):
                buffer.append(comments)
                num_comments += len(comments)
                num_done += after.num_stored - dump.num_stored
                lines = Counter(dump.lines) + Counter(after.lines)
                dump = replace(after, lines=dict(lines))
                self.progress.advance(num_done, comments=num_comments)
                is_full = sum(batch.nbytes for batch in buffer) >= BUFFER_BYTES
                is_late = time.monotonic() - last_commit >= COMMIT_SECONDS
                if dump.is_done or is_full or is_late:
                    partitions.commit(buffer, number, dump)
                    buffer, last_commit = [], time.monotonic()


def _description(path: Path) -> list[Any]:
    """What identifies a dump: its name, its size and its beginning."""
    with path.open("rb") as file:
        return [path.name, path.stat().st_size, file.read(FINGERPRINT_BYTES).hex()]
