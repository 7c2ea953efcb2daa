"""A report as a page to read."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from staircase_attention.clock import clock
from staircase_attention.experiments.experiment import Experiment
from staircase_attention.experiments.run_records import LAST_PART
from staircase_attention.experiments.spread import Spread
from staircase_attention.experiments.summary import SOLVED, RowSummary

MARK = "†"
"""Beside a row that had fewer updates or tokens than it should have."""
SHARED = "(shared)"
"""Beside times of runs that did not have the machine to themselves."""
NONE = "-"
NOT_RUN = "not run"

Environment = Mapping[str, Any]


def page(
    experiment: Experiment,
    rows: Sequence[RowSummary],
    *,
    written: str,
    environment: Environment,
    pictures: Mapping[str, str],
) -> str:
    """The whole page."""
    parts = [
        f"# {experiment.title}",
        _introduction(experiment, rows),
        _table(rows, with_paper=experiment.table is not None),
        _lengths(rows),
        _troubles(rows),
        "\n\n".join(f"![{shows}]({name})" for name, shows in pictures.items()),
        _notes(experiment),
        _origin(experiment, rows, written, environment),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _introduction(experiment: Experiment, rows: Sequence[RowSummary]) -> str:
    lines = [
        "Errors in percent, mean ± sample standard deviation over seeds (- with one seed), of the "
        "weights that were best on validation data. The best seed is the one with the lowest "
        "validation error; its test error is shown. Seeds change initial weights and dropout; the "
        f"data are the same for all. A row is solved when its validation error is {SOLVED:.0f}% or "
        "less; times count training and validation, and their mean is shown where every run got "
        f"there. Train is the error in training over the last {LAST_PART:.0%} of the updates, with "
        "the weights of the time, and dropout as it is in training. Far below Valid, a model knows "
        "its training data by heart, or has trouble with empty states (see `staircase eval "
        "--by-episode`), or its best weights are from long before the end."
    ]
    if experiment.table is not None:
        lines.append(
            f"The paper's numbers are those of its table `{experiment.table.label}`; "
            "its best seeds are those of `tab:main-results`."
        )
    if any(row.is_shared for row in rows):
        lines.append(
            f"Times marked {SHARED} are of runs beside which others were under way: what a run "
            "takes that has the machine to itself, they do not say."
        )
    if any(row.is_shortened for row in rows):
        against = "the paper" if experiment.table is not None else "their recipes"
        lines.append(
            f"**{MARK} Run for fewer updates or tokens than {against}: not a like-for-like "
            "comparison.**"
        )
    return "\n\n".join(lines)


def _table(rows: Sequence[RowSummary], *, with_paper: bool) -> str:
    columns = ["Model", "Row", "Recurrent steps", "Step size", "Forward size"]
    columns += ["Train, ours", "Valid, ours", "Test, ours", "Best seed, ours"]
    columns += ["Valid, paper", "Test, paper", "Best seed, paper"] if with_paper else []
    columns += ["Seeds", "Updates", "Tokens", "Time a run", "Solved after", "Parameters", "Device"]
    rule = ["---", "---", *["--:"] * (len(columns) - 3), "---"]
    lines = [columns, rule, *(_cells(row, with_paper=with_paper) for row in rows)]
    return _grid(lines)


def _cells(summary: RowSummary, *, with_paper: bool) -> list[str]:
    row, words = summary.row, summary.row.words
    mark = f" {MARK}" if summary.is_shortened else ""
    sizes = (words.recurrent_steps, words.step_size, words.forward_size)
    return [
        row.model + mark,
        row.name,
        *(NONE if size is None else str(size) for size in sizes),
        *_ours(summary),
        *(_paper(summary) if with_paper else []),
        *_budget(summary),
    ]


def _ours(summary: RowSummary) -> list[str]:
    best = summary.best
    if best is None:
        ended = bool(summary.with_status("diverged"))
        return [NONE, "no score" if ended else NOT_RUN, NONE, NONE]
    return [
        _spread(summary.train_error, digits=2),
        _spread(summary.error("valid"), digits=2),
        _spread(summary.error("test"), digits=2),
        f"{best.test:.2f} (seed {best.seed})",
    ]


def _paper(summary: RowSummary) -> list[str]:
    paper, best = summary.row.paper, summary.row.paper_best
    if paper is None:
        return [NONE, NONE, NONE]
    return [_spread(paper.valid), _spread(paper.test), NONE if best is None else f"{best:.1f}"]


def _budget(summary: RowSummary) -> list[str]:
    """Seeds, updates, tokens, times, parameters and device: what the runs really had."""
    row, solved = summary.row, summary.seconds_to_solve
    if not summary.is_run:
        return [NONE] * 7
    mark = f"{MARK} " if summary.is_shortened else ""
    shared = f" {SHARED}" if summary.is_shared else ""
    paper_seeds = "" if row.paper is None else f" of {row.paper.num_seeds}"
    updates = _of(_between([f"{n:,}" for n in summary.num_updates]), _whole(row.full_updates))
    tokens = _of(_between([short(n) for n in summary.num_tokens]), _short(row.full_tokens))
    return [
        f"{len(summary.results)}{paper_seeds}",
        mark + updates,
        tokens,
        NONE if summary.wall_seconds is None else clock(summary.wall_seconds) + shared,
        NONE if solved is None else clock(solved.mean) + shared,
        _between([f"{n:,}" for n in summary.num_parameters]),
        ", ".join(summary.devices).replace("|", "/"),
    ]


def _lengths(rows: Sequence[RowSummary]) -> str:
    """Test errors on episodes of other lengths, for the rows that have some."""
    lengths = sorted({length for row in rows for length in row.lengths})
    if not lengths:
        return ""
    columns = ["Row", *(f"{length:,}" for length in lengths), "Seeds"]
    lines = [columns, ["---", *["--:"] * (len(lengths) + 1)]]
    for row in rows:
        if row.lengths:
            errors = [_spread(row.length_error(length), digits=2) for length in lengths]
            counts = [str(sum(length in run.lengths for run in row.runs)) for length in lengths]
            seeds = counts[0] if len(set(counts)) == 1 else ", ".join(counts)
            lines.append([row.row.name, *errors, seeds])
    return "\n\n".join(
        [
            "## Other lengths",
            "Test error in percent of the same weights on episodes of these lengths.",
            _grid(lines),
        ]
    )


def _grid(lines: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _troubles(rows: Sequence[RowSummary]) -> str:
    """Runs that did not come to a good end, none left out."""
    lines = []
    for summary in rows:
        for run in summary.runs:
            place = f"- {summary.row.name}, seed {run.seed}: "
            if run.status == "failed":
                lines.append(f"{place}failed ({run.failure}); the next call tries again")
            elif run.status == "unfinished":
                lines.append(f"{place}unfinished; the next call takes it up where it stopped")
            elif run.result is not None and run.status == "diverged":
                counted = "counts with its best weights" if run.result.test else "has no score"
                rollbacks = run.result.num_rollbacks
                lines.append(
                    f"{place}diverged at update {run.result.num_updates:,} after {rollbacks} "
                    f"rollbacks; {counted}"
                )
    return (
        "\n".join(["## Runs that failed, diverged or are unfinished", "", *lines]) if lines else ""
    )


def _notes(experiment: Experiment) -> str:
    if experiment.table is None or not experiment.table.notes:
        return ""
    return "\n".join(
        ["## On the paper's numbers", "", *(f"- {note}" for note in experiment.table.notes)]
    )


def _origin(
    experiment: Experiment, rows: Sequence[RowSummary], written: str, environment: Environment
) -> str:
    runs = [run.environment for summary in rows for run in summary.runs if run.environment]
    counts = Counter(_place(one) for one in runs)
    lines = [
        *(f"- Run on {place} ({_runs(count)})" for place, count in counts.most_common()),
        f"- Written {written} on {_place(environment)}",
    ]
    if experiment.overrides:
        changed = ", ".join(f"`{path}={value}`" for path, value in experiment.overrides.items())
        lines.append(f"- Settings other than the recipes': {changed}")
    if experiment.command:
        lines.append(f"- Command: `{experiment.command}`")
    return "\n".join(["## Where this comes from", "", *lines])


def _place(environment: Environment) -> str:
    """A machine and its packages."""
    packages = environment.get("packages", {})
    versions = ", ".join(f"{name} {version}" for name, version in packages.items())
    machine = f"{environment.get('device')}, {environment.get('platform')}"
    return f"{machine}; Python {environment.get('python')}, {versions}"


def _runs(count: int) -> str:
    return f"{count} run{'' if count == 1 else 's'}"


def _spread(spread: Spread | None, digits: int = 1) -> str:
    return NONE if spread is None else spread.shown(digits)


def _between(counts: Sequence[str]) -> str:
    """One number, or the fewest and the most."""
    return " to ".join(dict.fromkeys(counts))


def _of(count: str, full: str | None) -> str:
    return count if full is None else f"{count} of {full}"


def _whole(count: int | None) -> str | None:
    return None if count is None else f"{count:,}"


def _short(count: int | None) -> str | None:
    return None if count is None else short(count)


def short(count: int) -> str:
    """A large number in three digits.

    >>> short(3_276_800_000), short(65_536), short(12)
    ('3.28G', '65.5k', '12')
    """
    for unit, size in (("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if count >= size:
            return f"{count / size:.3g}{unit}"
    return str(count)
