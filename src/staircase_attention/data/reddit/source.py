"""Reddit as a source of documents: prepared on disk once, and restartable at any moment."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

from staircase_attention.checks import check_integer, input_error
from staircase_attention.data.document import Cursor, Document
from staircase_attention.data.progress import Progress
from staircase_attention.data.reddit.examples import Writer
from staircase_attention.data.reddit.limits import Limits
from staircase_attention.data.reddit.options import RedditOptions
from staircase_attention.data.reddit.preparation import Prepared, prepare
from staircase_attention.data.reddit.report import Report
from staircase_attention.data.reddit.survey import outline_of


class RedditSource:
    """Comments of Pushshift dumps, each with the path of comments leading to it.

    A preparation works through the dumps once, with all cores and in bounded memory, and keeps
    what it has done in the work folder: a process that is killed loses ten seconds' work, and the
    next one goes on from there. It is run by whatever needs it first, `report` or `documents`.

    Documents come in an order that depends on the dumps alone: by a hash of the thread, then by
    thread, time and id.
    """

    def __init__(
        self,
        paths: Sequence[Path | str],
        work_folder: Path | str,
        options: RedditOptions | None = None,
        *,
        num_workers: int | None = None,
        progress: Progress | None = None,
        limits: Limits | None = None,
        name: str = "reddit",
    ) -> None:
        """Say what to read and where to work.

        Args:
            paths: the dumps, plain or compressed. Of two comments with one id the first is kept,
                in the order of the dumps and of their lines.
            work_folder: a folder for this preparation alone, with room for half of the dumps as
                they are when decompressed, or less. It may be deleted when all is done.
            options: what an example is, and how it is written.
            num_workers: processes that parse; None for one a core, if there is enough to do.
            progress: told how far the preparation is.
            limits: how much is held in memory.
            name: what the manifest calls this source.
        """
        self.files = _existing(paths)
        self.work_folder = Path(work_folder)
        self.options = options or RedditOptions()
        if num_workers is not None:
            check_integer("num_workers", num_workers, minimum=1, example=2)
        self.num_workers = num_workers
        self.progress = progress
        self.limits = limits
        self.name = name

    @property
    def parameters(self) -> Mapping[str, Any]:
        """All options, as plain data."""
        return asdict(self.options)

    @cached_property
    def total_bytes(self) -> int:
        """The size of the dumps, as stored."""
        return sum(path.stat().st_size for path in self.files)

    @property
    def report(self) -> Report:
        """All counts."""
        return self._prepared.report

    @cached_property
    def _prepared(self) -> Prepared:
        return prepare(
            self.files,
            self.work_folder,
            self.options,
            num_workers=self.num_workers,
            progress=self.progress,
            limits=self.limits,
        )

    def documents(self, cursor: Cursor | None = None) -> Iterator[tuple[Document, Cursor]]:
        """The documents after a cursor, from the first for None; each with the cursor after it."""
        prepared = self._prepared
        first_group, first_document = _place(cursor, len(prepared.groups))
        numbers = [count.num_documents for count in prepared.counts]
        num_before = [0, *accumulate(numbers)]
        skipped = prepared.report.skipped()
        for number in range(first_group, len(prepared.groups)):
            writer = self._writer(number)
            assert writer.ends.size == numbers[number]
            for place, document in enumerate(writer.documents(first_document), first_document + 1):
                num_done = num_before[number] + place
                yield (
                    document,
                    Cursor(
                        place={"group": number, "document": place},
                        num_read=self.total_bytes * num_done // num_before[-1],
                        skipped=skipped,
                    ),
                )
            first_document = 0

    def _writer(self, number: int) -> Writer:
        group, runs = self._prepared.groups[number], self._prepared.runs
        found = outline_of(group, runs, self.options)
        texts = runs.texts(group.bucket, group.part, group.num_parts)
        return Writer(found, texts, self.options)


def _existing(paths: Sequence[Path | str]) -> tuple[Path, ...]:
    if isinstance(paths, Path | str) or not paths:
        rule = "paths must be a list of one dump or more"
        raise input_error(rule, repr(paths), "use for example ['RC_2019-07.zst']")
    files = tuple(Path(path) for path in paths)
    for path in files:
        if not path.is_file():
            raise input_error("a dump must be a file", path, "check the path")
    return files


def _place(cursor: Cursor | None, num_groups: int) -> tuple[int, int]:
    if cursor is None:
        return 0, 0
    group, document = cursor.place.get("group", -1), cursor.place.get("document", -1)
    if not (0 <= group < num_groups and document >= 0):
        remedy = "use a cursor that this source gave, with the same work folder"
        raise input_error("a cursor must be a place in the source", dict(cursor.place), remedy)
    return group, document
