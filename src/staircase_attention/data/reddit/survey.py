"""The second half of a preparation: rebuild the threads, bucket by bucket, and count."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from staircase_attention.data.progress import Progress
from staircase_attention.data.reddit.counting import comment_counts, text_counts
from staircase_attention.data.reddit.options import RedditOptions
from staircase_attention.data.reddit.outline import Outline, outline
from staircase_attention.data.reddit.report import CommentCounts, TextCounts
from staircase_attention.data.reddit.runs import RunFolder
from staircase_attention.data.reddit.threads import rebuild
from staircase_attention.data.reddit.workers import Workers
from staircase_attention.files import read_json, write_json


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """Threads that are held in memory together: a bucket, or a part of a large one."""

    bucket: int
    part: int
    num_parts: int
    num_bytes: int
    """Its size, about."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupCounts:
    """What is in a group."""

    comments: CommentCounts
    splits: dict[str, TextCounts]

    @property
    def num_documents(self) -> int:
        """Texts that are written of it."""
        return sum(texts.documents for texts in self.splits.values())


def groups(runs: RunFolder, largest_bytes: int) -> Iterator[Group]:
    """All threads, in the order in which they are written."""
    for bucket, num_bytes in enumerate(runs.bucket_bytes().tolist()):
        num_parts = max(-(-num_bytes // largest_bytes), 1)
        for part in range(num_parts):
            size = num_bytes // num_parts
            yield Group(bucket=bucket, part=part, num_parts=num_parts, num_bytes=size)


def outline_of(group: Group, runs: RunFolder, options: RedditOptions) -> Outline:
    """The threads of a group, with all that the options say of them."""
    heads = runs.heads(group.bucket, group.part, group.num_parts)
    return outline(rebuild(heads), options)


def count(group: Group, runs: RunFolder, options: RedditOptions) -> GroupCounts:
    """What is in a group; its texts stay on disk."""
    found = outline_of(group, runs, options)
    return GroupCounts(comments=comment_counts(found), splits=text_counts(found, options))


class Survey:
    """Counts of all groups, each kept in a file of its own as soon as it is there."""

    def __init__(self, folder: Path, runs: RunFolder, options: RedditOptions) -> None:
        self.folder = folder
        self.runs = runs
        self.options = options

    def counts(self, found: list[Group], workers: Workers, progress: Progress) -> list[GroupCounts]:
        """Count what is not counted yet, and give all counts."""
        missing = [group for group in found if not self._path(group).exists()]
        if missing:
            progress.say("rebuilding the threads")
            total = sum(group.num_bytes for group in found)
            progress.begin(total, total - sum(group.num_bytes for group in missing))
            try:
                self._count(missing, workers, progress)
            finally:
                progress.end()
        return [_read(self._path(group)) for group in found]

    def _count(self, missing: list[Group], workers: Workers, progress: Progress) -> None:
        counting = partial(count, runs=self.runs, options=self.options)
        results = workers.in_order(counting, missing, 2 * workers.num_workers)
        num_examples = 0
        for group, result in zip(missing, results, strict=True):
            write_json(self._path(group), asdict(result))
            num_examples += result.comments.examples
            progress.advance(group.num_bytes, {"examples": num_examples})

    def _path(self, group: Group) -> Path:
        return self.folder / f"{group.bucket:06d}-{group.part:04d}.json"


def _read(path: Path) -> GroupCounts:
    plain = read_json(path)
    splits = {split: TextCounts(**counts) for split, counts in plain["splits"].items()}
    return GroupCounts(comments=CommentCounts(**plain["comments"]), splits=splits)
