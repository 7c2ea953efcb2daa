"""The first half of a preparation: read the dumps, and sort their comments into buckets on disk.

A thread for each dump decompresses, which leaves Python free for the others; processes parse; runs
are written as they fill. What comes out does not depend on how many there are of either.
"""

import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import replace
from functools import partial
from pathlib import Path

from staircase_attention.data.progress import Progress
from staircase_attention.data.reddit.archives import Archive
from staircase_attention.data.reddit.cleaning import Cleaning
from staircase_attention.data.reddit.limits import Limits
from staircase_attention.data.reddit.lines import Batch, line_batches
from staircase_attention.data.reddit.records import parse_batch
from staircase_attention.data.reddit.report import LineCounts
from staircase_attention.data.reddit.runs import RunBuffer, RunEnd, RunFolder
from staircase_attention.data.reddit.workers import Workers

MOST_DUMPS_AT_ONCE = 8


Job = list[tuple[int, Archive]]
"""Dumps to be read one after another, each with its number."""


class _OverError(Exception):
    """Raised in a thread when another one failed."""


class Scatter:
    """Reads dumps into runs, from wherever an earlier process stopped."""

    def __init__(
        self,
        runs: RunFolder,
        cleaning: Cleaning,
        workers: Workers,
        progress: Progress,
        limits: Limits,
    ) -> None:
        self.runs = runs
        self.workers = workers
        self.progress = progress
        self.limits = limits
        self._parse = partial(parse_batch, num_buckets=runs.num_buckets, cleaning=cleaning)
        self._is_over = threading.Event()
        self._telling = threading.Lock()
        self._num_comments = 0

    def read_all(self, paths: Sequence[Path]) -> None:
        """Read every dump to its end."""
        ends = list(map(self.runs.last, range(len(paths))))
        if all(end.is_last for end in ends):
            return
        self._num_comments = sum(LineCounts(**end.lines).comments for end in self.runs.ends())
        self.progress.say("reading the dumps")
        total = sum(path.stat().st_size for path in paths)
        self.progress.begin(total, sum(end.position for end in ends))
        try:
            self._read_jobs(paths)
        finally:
            self.progress.end()

    def _read_jobs(self, paths: Sequence[Path]) -> None:
        jobs = _jobs([self._archive(path) for path in paths])
        num_at_once = min(len(jobs), self.workers.num_workers, MOST_DUMPS_AT_ONCE)
        if num_at_once == 1:
            for job in jobs:
                self._read(job, num_at_once)
            return
        with ThreadPoolExecutor(num_at_once) as threads:
            futures = [threads.submit(self._read, job, num_at_once) for job in jobs]
            try:
                done, _ = wait(futures, return_when=FIRST_EXCEPTION)
            finally:
                # After an error in one dump, or Ctrl-C, the others need not go on to their ends.
                self._is_over.set()
                threads.shutdown(cancel_futures=True)
        for future in done:
            future.result()

    def _archive(self, path: Path) -> Archive:
        return Archive(path, self.runs.folder, self.limits.largest_window_bytes)

    def _read(self, job: Job, num_at_once: int) -> None:
        for dump, archive in job:
            before = self.runs.last(dump)
            if not before.is_last:
                self._read_on(archive, before, num_at_once)

    def _read_on(self, archive: Archive, end: RunEnd, num_at_once: int) -> None:
        buffer, last_write = RunBuffer(self.runs.num_buckets), time.monotonic()
        num_ahead = max(2 * self.workers.num_workers // num_at_once, 2)
        on_the_way: deque[tuple[Batch, int]] = deque()
        contents = self._contents(archive, end.end, on_the_way)
        for parsed in self.workers.in_order(self._parse, contents, num_ahead):
            batch, position = on_the_way.popleft()
            buffer.add(parsed, batch.num_overlong)
            self._tell(position - end.position, parsed.counts["comments"])
            end = replace(end, end=batch.end, position=position)
            is_full = buffer.num_bytes >= self.limits.run_bytes // num_at_once
            if is_full or time.monotonic() - last_write >= self.limits.run_seconds:
                end = self._write(buffer, end)
                buffer, last_write = RunBuffer(self.runs.num_buckets), time.monotonic()
        num_bytes = archive.path.stat().st_size
        self._tell(num_bytes - end.position, 0)
        self._write(buffer, replace(end, position=num_bytes, is_last=True, damage=archive.damage))

    def _contents(
        self, archive: Archive, start: int, on_the_way: deque[tuple[Batch, int]]
    ) -> Iterator[bytes]:
        """The text of each batch; the rest of it waits here for what the text gives."""
        for batch in line_batches(archive.blocks(start), start):
            if self._is_over.is_set():
                raise _OverError
            on_the_way.append((replace(batch, content=b""), archive.position))
            yield batch.content

    def _tell(self, num_bytes: int, num_comments: int) -> None:
        with self._telling:
            self._num_comments += num_comments
            self.progress.advance(num_bytes, {"comments": self._num_comments})

    def _write(self, buffer: RunBuffer, end: RunEnd) -> RunEnd:
        end = replace(end, run=end.run + 1, lines=buffer.lines)
        self.runs.write(buffer, end)
        return end


def _jobs(archives: Sequence[Archive]) -> list[Job]:
    """One dump a job; but all .zst in one, as a .zst may need 2 GiB, and is fast to read."""
    in_turn = [pair for pair in enumerate(archives) if pair[1].compression == "zst"]
    others = [[pair] for pair in enumerate(archives) if pair[1].compression != "zst"]
    return [in_turn, *others] if in_turn else others
