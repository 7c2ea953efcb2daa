"""A preparation from dumps to counts: what it plans, what it keeps on disk, how it goes on.

The work folder holds `plan.json`, which says what the rest was made from; `runs/`, the comments
sorted into buckets; and for each choice of options a folder of counts. All of them are written
whole, and what is there is not done again.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from staircase_attention.checks import input_error
from staircase_attention.cores import available_cores
from staircase_attention.data.progress import Progress, Silent
from staircase_attention.data.reddit.archives import compression_of
from staircase_attention.data.reddit.limits import Limits
from staircase_attention.data.reddit.options import RedditOptions
from staircase_attention.data.reddit.report import CommentCounts, LineCounts, Report, TextCounts
from staircase_attention.data.reddit.runs import RunFolder
from staircase_attention.data.reddit.scatter import Scatter
from staircase_attention.data.reddit.survey import (
    Group,
    GroupCounts,
    Survey,
    groups,
)
from staircase_attention.data.reddit.work_folder import sole_use
from staircase_attention.data.reddit.workers import workers
from staircase_attention.data.splits import SPLITS
from staircase_attention.files import read_json, write_json

FORMAT = 1
"""Changes when what lies in a work folder is to be read differently."""
FEWEST_BUCKETS, MOST_BUCKETS = 16, 1 << 14
BUCKET_BYTES = 32 << 20
"""Comments in a bucket, if the guess of their size is right; groups bound it if not."""
SIZE_IF_PLAIN, SIZE_IF_COMPRESSED = 0.5, 3.0
"""Bytes of comments, as they lie in runs, for each byte of a dump."""
WORTH_A_WORKER = 4 << 20
"""Bytes of comments below which another process takes longer to start than it saves."""
FINGERPRINT_BYTES = 1 << 16
"""Bytes at the front of a dump that tell it from others."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Prepared:
    """All that the documents are made from."""

    runs: RunFolder
    groups: list[Group]
    counts: list[GroupCounts]
    """Of each group."""
    report: Report


def prepare(
    dumps: Sequence[Path],
    work_folder: Path,
    options: RedditOptions,
    *,
    num_workers: int | None = None,
    progress: Progress | None = None,
    limits: Limits | None = None,
) -> Prepared:
    """Do what is not done yet; RedditSource says what the arguments are."""
    runs_folder = work_folder / "runs"
    counts_folder = work_folder / f"counts-{_fingerprint(_plain(asdict(options)))}"
    for folder in (runs_folder, counts_folder):
        folder.mkdir(parents=True, exist_ok=True)
    limits, progress = limits or Limits(), progress or Silent()
    expected_bytes = _expected_bytes(dumps)
    if num_workers is None:
        num_workers = min(available_cores(), expected_bytes // WORTH_A_WORKER + 1)
    # Workers come first: forked later they would hold the folder too, for a moment after a kill.
    with workers(num_workers) as pool, sole_use(work_folder):
        plan = _plan(dumps, work_folder, options, expected_bytes, limits)
        runs = RunFolder(runs_folder, plan["num_buckets"])
        Scatter(runs, options.cleaning, pool, progress, limits).read_all(dumps)
        found = list(groups(runs, plan["largest_group_bytes"]))
        counts = Survey(counts_folder, runs, options).counts(found, pool, progress)
    report = _report(dumps, runs, counts)
    return Prepared(runs=runs, groups=found, counts=counts, report=report)


def _plan(
    dumps: Sequence[Path],
    work_folder: Path,
    options: RedditOptions,
    expected_bytes: int,
    limits: Limits,
) -> dict[str, Any]:
    """The plan in the folder, or a new one; refused where it is that of something else."""
    num_buckets = min(max(expected_bytes // BUCKET_BYTES, FEWEST_BUCKETS), MOST_BUCKETS)
    new: dict[str, Any] = _plain(
        {
            "format": FORMAT,
            "dumps": [_description(path) for path in dumps],
            "cleaning": asdict(options.cleaning),
            "num_buckets": num_buckets,
            "largest_group_bytes": limits.largest_group_bytes,
        }
    )
    path = work_folder / "plan.json"
    if not path.exists():
        write_json(path, new)
        return new
    plan: dict[str, Any] = read_json(path)
    for what in ("format", "dumps", "cleaning"):
        if plan.get(what) != new[what]:
            rule = f"a work folder must be used with the same {what} as before"
            remedy = "name another folder, or delete this one to begin again"
            raise input_error(rule, f"others in {work_folder}", remedy)
    return plan


def _description(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        start = file.read(FINGERPRINT_BYTES)
    return {
        "name": path.name,
        "num_bytes": path.stat().st_size,
        "start": hashlib.blake2b(start, digest_size=8).hexdigest(),
    }


def _expected_bytes(dumps: Sequence[Path]) -> int:
    factors = {"plain": SIZE_IF_PLAIN}
    return sum(
        int(path.stat().st_size * factors.get(compression_of(path), SIZE_IF_COMPRESSED))
        for path in dumps
    )


def _plain(data: Any) -> Any:  # noqa: ANN401
    """Data as it would come back from a file."""
    return json.loads(json.dumps(data))


def _fingerprint(data: Any) -> str:  # noqa: ANN401
    content = json.dumps(data, sort_keys=True).encode()
    return hashlib.blake2b(content, digest_size=6).hexdigest()


def _report(dumps: Sequence[Path], runs: RunFolder, counts: Sequence[GroupCounts]) -> Report:
    lines = [LineCounts()] * len(dumps)
    damage = {}
    for end in runs.ends():
        lines[end.dump] = LineCounts.total([lines[end.dump], LineCounts(**end.lines)])
        if end.damage is not None:
            damage[str(dumps[end.dump])] = end.damage
    report = Report(
        dumps=dict(zip(map(str, dumps), lines, strict=True)),
        damage=damage,
        comments=CommentCounts.total(count.comments for count in counts),
        splits={
            split: TextCounts.total(count.splits[split] for count in counts) for split in SPLITS
        },
    )
    assert report.comments.comments == report.lines.comments
    return report
