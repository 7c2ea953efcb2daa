"""Reddit as a source of documents: prepared on disk once, and restartable at any time."""

import hashlib
import json
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from staircase_attention.checks import check_integer, input_error
from staircase_attention.cores import available_cores
from staircase_attention.data.compression import OVERLONG, DamagedFileError, compression_of
from staircase_attention.data.documents import Cursor, Document
from staircase_attention.data.jobs import PreparationProgress, worker_pool
from staircase_attention.data.reddit.partitions import Partitions, read_dumps
from staircase_attention.data.reddit.threads import RedditOptions, documents, rebuild
from staircase_attention.files import locked

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
        progress: PreparationProgress | None = None,
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
        self.files = tuple(Path(path) for path in paths)
        for path in self.files:
            if not path.is_file():
                raise input_error("a dump must be a file", path, "check the path")
        self.work_folder = Path(work_folder)
        self.options = options or RedditOptions()
        self.allow_damaged = allow_damaged
        if num_workers is not None:
            check_integer("num_workers", num_workers, minimum=1, example=2)
        self.num_workers = num_workers
        self.progress = progress or PreparationProgress()
        self._share = (0, 1)

    @property
    def parameters(self) -> Mapping[str, Any]:
        """All options as plain data."""
        return asdict(self.options) | {"allow_damaged": self.allow_damaged}

    @cached_property
    def total_bytes(self) -> int:
        """The size of the dumps as stored."""
        return sum(path.stat().st_size for path in self.files)

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
            words[f"{OVERLONG} in {path.name}"] += dump.lines.get("overlong", 0)
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
            path.stat().st_size * (SIZE_IF_COMPRESSED if compression_of(path) else SIZE_IF_PLAIN)
            for path in self.files
        ]
        size = int(sum(sizes))
        num_workers = self.num_workers or min(available_cores(), size // WORTH_A_WORKER + 1)
        num_partitions = min(max(size // PARTITION_BYTES, FEWEST_PARTITIONS), MOST_PARTITIONS)
        cleaning = self.options.cleaning
        dumps = [_description(path) for path in self.files]
        content = json.dumps([FORMAT, dumps, asdict(cleaning)], sort_keys=True).encode()
        digest = hashlib.blake2b(content, digest_size=6).hexdigest()
        folder = self.work_folder / f"partitions-{digest}"
        folder.mkdir(parents=True, exist_ok=True)
        # Workers come first: forked later they would hold the lock too, for a moment after a kill.
        with worker_pool(num_workers) as pool, locked(folder, wait=self._share[1] > 1):
            partitions = Partitions(folder, num_partitions, len(self.files))
            allow_damaged = self.allow_damaged
            read_dumps(
                self.files, partitions, cleaning, pool, self.progress, allow_damaged=allow_damaged
            )
        for path, dump in zip(self.files, partitions.dumps, strict=True):
            # An earlier preparation may have allowed what this one does not.
            if dump.damage is not None and not allow_damaged:
                raise DamagedFileError(path, dump.damage)
        return partitions


def _description(path: Path) -> list[Any]:
    """What identifies a dump: its name, its size and its beginning."""
    with path.open("rb") as file:
        return [path.name, path.stat().st_size, file.read(FINGERPRINT_BYTES).hex()]
