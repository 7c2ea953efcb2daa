"""Reddit as a source of documents: prepared on disk once, and restartable at any time."""

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from itertools import accumulate, islice
from pathlib import Path
from typing import Any

from staircase_attention.checks import check_integer, input_error
from staircase_attention.cores import available_cores
from staircase_attention.data.compression import compression_of
from staircase_attention.data.documents import SPLITS, Cursor, Document
from staircase_attention.data.jobs import PreparationProgress, in_order, worker_pool
from staircase_attention.data.reddit.comments import LineCounts
from staircase_attention.data.reddit.partitions import Partitions, ThreadGroup, read_dumps
from staircase_attention.data.reddit.threads import (
    CommentCounts,
    GroupCounts,
    RedditOptions,
    TextCounts,
    count,
    documents,
    rebuild,
)
from staircase_attention.files import locked, read_json, write_json

Prepared = tuple[Partitions, list[ThreadGroup], list[GroupCounts]]

# Changes when files in a work folder get another meaning.
FORMAT = 2
FEWEST_PARTITIONS, MOST_PARTITIONS = 16, 1 << 14
# Comments in a partition, if the estimate of their total size is right.
PARTITION_BYTES = 32 << 20
# Comments that are held at once. A larger partition is processed in parts; one thread is not.
LARGEST_GROUP_BYTES = 64 << 20
# Estimated bytes of comments per byte of a dump.
SIZE_IF_PLAIN, SIZE_IF_COMPRESSED = 0.5, 3.0
# Bytes of comments below which another process takes longer to start than it saves.
WORTH_A_WORKER = 4 << 20
# Bytes at the beginning of a dump that identify it.
FINGERPRINT_BYTES = 1 << 16


@dataclass(frozen=True, kw_only=True, slots=True)
class RedditReport:
    """All counts of a preparation."""

    dumps: dict[str, LineCounts]
    """By path."""
    damage: dict[str, str]
    """By path: why a dump could not be read to its end."""
    comments: CommentCounts
    splits: dict[str, TextCounts]

    @property
    def lines(self) -> LineCounts:
        """The lines of all dumps."""
        return LineCounts.total(self.dumps.values())

    @property
    def texts(self) -> TextCounts:
        """What is written in all splits."""
        return TextCounts.total(self.splits.values())

    def skipped(self) -> dict[str, int]:
        """What could not be used, in words; only counts above 0."""
        words: Counter[str] = Counter()
        for path, lines in self.dumps.items():
            words[f"broken lines in {Path(path).name}"] += lines.broken
        words.update(f"damaged files: {Path(path).name}" for path in self.damage)
        for name in ("deleted", "removed", "empty", "bots", "filtered", "duplicates"):
            words[f"comments: {name}"] = getattr(self.comments, name)
        words["comments: no whole path"] = self.comments.with_text - self.comments.examples
        return {what: count for what, count in words.items() if count}


class RedditSource:
    """Comments of Pushshift dumps, each with the path of comments that leads to it.

    The preparation reads the dumps once, on all cores and in bounded memory, and stores its results
    in the work folder. A process that is killed loses ten seconds of work; the next one resumes.
    The preparation starts when `report` or `documents` first needs it.

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
        if num_workers is not None:
            check_integer("num_workers", num_workers, minimum=1, example=2)
        self.num_workers = num_workers
        self.progress = progress or PreparationProgress()

    @property
    def parameters(self) -> Mapping[str, Any]:
        """All options as plain data, under the names that manifests have always used."""
        plain = asdict(self.options)
        plain["fractions"] = plain.pop("held_out") | {"seed": plain.pop("split_seed")}
        return plain

    @cached_property
    def total_bytes(self) -> int:
        """The size of the dumps as stored."""
        return sum(path.stat().st_size for path in self.files)

    @cached_property
    def report(self) -> RedditReport:
        """All counts."""
        partitions, _, counts = self._prepared
        dumps = dict(zip(map(str, self.files), partitions.dumps, strict=True))
        report = RedditReport(
            dumps={path: dump.lines for path, dump in dumps.items()},
            damage={path: dump.damage for path, dump in dumps.items() if dump.damage},
            comments=CommentCounts.total(CommentCounts(**each["comments"]) for each in counts),
            splits={
                split: TextCounts.total(TextCounts(**each["splits"][split]) for each in counts)
                for split in SPLITS
            },
        )
        assert report.comments.comments == report.lines.comments
        return report

    def documents(self, cursor: Cursor | None = None) -> Iterator[tuple[Document, Cursor]]:
        """The documents after a cursor, or all for None; each with the cursor after it."""
        partitions, groups, counts = self._prepared
        place = {"group": 0, "document": 0} if cursor is None else cursor.place
        first_group, first_document = place["group"], place["document"]
        numbers = [
            sum(texts.get("documents", 0) for texts in each["splits"].values()) for each in counts
        ]
        num_before = [0, *accumulate(numbers)]
        skipped = self.report.skipped()
        for number in range(first_group, len(groups)):
            threads = rebuild(partitions.read(groups[number]), self.options)
            written = (document for each in threads for document in documents(each, self.options))
            for index, document in islice(enumerate(written, start=1), first_document, None):
                num_done = num_before[number] + index
                num_read = self.total_bytes * num_done // num_before[-1]
                place = {"group": number, "document": index}
                yield document, Cursor(place=place, num_read=num_read, skipped=skipped)
            first_document = 0

    @cached_property
    def _prepared(self) -> Prepared:
        """Do what is not done yet."""
        sizes = [
            path.stat().st_size * (SIZE_IF_COMPRESSED if compression_of(path) else SIZE_IF_PLAIN)
            for path in self.files
        ]
        size = int(sum(sizes))
        num_workers = self.num_workers or min(available_cores(), size // WORTH_A_WORKER + 1)
        num_partitions = min(max(size // PARTITION_BYTES, FEWEST_PARTITIONS), MOST_PARTITIONS)
        dumps = [_description(path) for path in self.files]
        folder = self.work_folder / f"partitions-{_digest([dumps, asdict(self.options.cleaning)])}"
        folder.mkdir(parents=True, exist_ok=True)
        # Workers come first: forked later they would hold the lock too, for a moment after a kill.
        with worker_pool(num_workers) as pool, locked(folder):
            partitions = Partitions(folder, num_partitions, len(self.files))
            read_dumps(self.files, partitions, self.options.cleaning, pool, self.progress)
            groups = partitions.groups(LARGEST_GROUP_BYTES)
            path = folder / f"counts-{_digest(asdict(self.options))}.json"
            if not path.exists():
                write_json(path, self._counts(partitions, groups, pool))
        return partitions, groups, read_json(path)

    def _counts(
        self, partitions: Partitions, groups: list[ThreadGroup], pool: Executor | None
    ) -> list[GroupCounts]:
        """The counts of each group."""
        counts, num_done, num_examples = [], 0, 0
        self.progress.say("rebuilding the threads")
        self.progress.begin(sum(group.num_bytes for group in groups), 0)
        results = in_order(pool, partial(_count, partitions, self.options), groups)
        for group, result in zip(groups, results, strict=True):
            counts.append(result)
            num_done += group.num_bytes
            num_examples += result["comments"]["examples"]
            self.progress.advance(num_done, {"examples": num_examples})
        return counts


def _count(partitions: Partitions, options: RedditOptions, group: ThreadGroup) -> GroupCounts:
    return count(partitions.read(group), options)


def _description(path: Path) -> list[Any]:
    """What identifies a dump: its name, its size and its beginning."""
    with path.open("rb") as file:
        return [path.name, path.stat().st_size, file.read(FINGERPRINT_BYTES).hex()]


def _digest(plain: Any) -> str:  # noqa: ANN401
    content = json.dumps([FORMAT, plain], sort_keys=True).encode()
    return hashlib.blake2b(content, digest_size=6).hexdigest()
