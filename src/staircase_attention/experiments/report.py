"""The report of an experiment: as data, as a page of HTML with figures, as a terminal table."""

import datetime
import itertools
import json
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table

from staircase_attention.checks import check_integer
from staircase_attention.display import clock
from staircase_attention.evaluation import title
from staircase_attention.experiments import results
from staircase_attention.experiments.page import folded, listing, page, table
from staircase_attention.experiments.paper import PaperTable, Spread, paper_summary
from staircase_attention.files import write_json, write_whole
from staircase_attention.plain import to_plain
from staircase_attention.training.run_folder import environment

# Incremented when the layout of report.json changes.
FORMAT = 4
# Marks a row that had fewer updates or tokens than it should have.
MARK = "†"
# Marks times of runs that did not have the machine to themselves.
SHARED = "(shared)"
NONE = "-"
# Of every page.
EXPLANATION = f"""\
Scores are mean ± sample standard deviation over seeds, of the weights with the best validation \
score. The best seed has the lowest validation score; its test score is shown. Seeds change \
initial weights and dropout, not the data. Train is the mean training error of the last \
{results.LAST_PART:.0%} of the updates, with dropout: far below Valid, a model has memorised its \
data, fails on empty states (staircase eval --lanes 9999) or was best long before the end. \
Solved: a validation error of {results.SOLVED:.0f}% or less, in every run. {MARK}: fewer updates \
or tokens than in the recipe, not like for like. {SHARED}: other runs used the machine at the \
same time. Perplexities of different vocabularies compare in their order only."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """An experiment: rows that are run and reported together, and their results so far."""

    title: str
    folder: Path
    rows: tuple[results.Row, ...]
    """All that the report lists."""
    num_seeds: int
    first_seed: int = 0
    tables: tuple[PaperTable, ...] = ()
    """The paper's tables that the rows are compared with."""
    lengths: tuple[int, ...] = ()
    written: str = ""
    environment: Mapping[str, Any] = field(default_factory=dict)
    """The machine and the packages that wrote it."""

    def __post_init__(self) -> None:
        check_integer("seeds", self.num_seeds, minimum=1, example=3)
        check_integer("the first seed", self.first_seed, minimum=0, example=1)

    @property
    def failures(self) -> list[tuple[str, results.RunRecord]]:
        """Runs that failed or diverged, with the names of their rows."""
        runs = [(row.name, run) for row in self.rows for run in row.runs]
        return [(name, run) for name, run in runs if run.status in ("failed", "diverged")]

    @property
    def command(self) -> str:
        """The command line that wrote it."""
        return shlex.join(self.environment["command"])

    def to_plain(self) -> dict[str, Any]:
        """The report as plain data."""
        return {
            "format": FORMAT,
            "title": self.title,
            "table": ", ".join(table.label for table in self.tables) or None,
            "unit": results.unit(self.rows),
            "command": self.command,
            "written": self.written,
            "environment": to_plain(self.environment),
            "order": orders(self.rows),
            "rows": [_plain_row(row) for row in self.rows],
        }


def write_report(report: Report) -> Report:
    """Write report.json and report.html into its folder; each is whole or as it was before."""
    folder = report.folder
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for row in report.rows:
        lengths = report.lengths if row.is_wanted else ()
        rows.append(replace(row, runs=results.read_runs(folder / row.name, row.measure, lengths)))
    written = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    report = replace(report, rows=tuple(rows), written=written, environment=environment())
    # Scores that are not finite become null: JSON has no NaN.
    plain = json.loads(json.dumps(report.to_plain()), parse_constant=lambda _: None)
    write_json(folder / "report.json", plain)
    write_whole(folder / "report.html", page(report.title, _sections(report)))
    return report


def _plain_row(row: results.Row) -> dict[str, Any]:
    lengths = {str(length): to_plain(row.length_error(length)) for length in row.lengths}
    ours = {split: row.score(split) for split in ("train", "valid", "test")}
    return {
        "name": row.name,
        "label": row.label,
        "recipe": row.recipe.name,
        "model": row.model,
        **to_plain(row.words),
        "ours": {**to_plain(ours), "lengths": lengths} if row.results else None,
        "paper": to_plain(row.paper),
        "full_updates": row.budget[0] if row.budget else None,
        "is_shortened": row.is_shortened,
        "runs": to_plain(row.runs),
    }


def _sections(report: Report) -> list[str]:
    """The parts of the page, some of them empty."""
    # Imported late: matplotlib takes a second.
    from staircase_attention.experiments import figures

    rows = report.rows
    drawn = figures.draw_figures(rows, title=report.title)
    return [
        f"<p>In {escape(results.unit(rows))}. {escape(EXPLANATION)}</p>",
        table([table_cells(row) for row in rows]),
        *(figures.image(figure, caption) for caption, figure in drawn.items()),
        listing("The paper's order", orders(rows)),
        table(_lengths(rows), "Test error in percent by episode length, of the same weights"),
        listing("Runs that failed, diverged, did not learn or are unfinished", troubles(rows)),
        *(listing(f"The paper's numbers ({one.label})", one.notes) for one in report.tables),
        listing("Origin", _origin(report)),
        *(folded(f"Recipe of {row.label}", row.recipe.to_plain()) for row in rows if row.runs),
    ]


def table_cells(row: results.Row) -> dict[str, str]:
    """What the main table shows of a row, by heading."""
    digits, best, ours, paper = row.measure.digits, row.best, row.results, row.paper
    mark, shared = f" {MARK}" * row.is_shortened, f" {SHARED}" * row.is_shared
    cells = {"Model": row.model + mark, "Row": row.label}
    for name, size in to_plain(row.words).items():
        cells[name.replace("_", " ").capitalize()] = NONE if size is None else str(size)
    unscored = "no score" if any(run.status == "diverged" for run in row.runs) else "not run"
    cells["Train, ours"] = _spread(row.score("train"), digits)
    cells["Valid, ours"] = _spread(row.score("valid"), digits) if ours else unscored
    cells["Test, ours"] = _spread(row.score("test"), digits)
    if best is not None:
        cells["Best seed, ours"] = f"{row.value(best, 'test'):.{digits}f} (seed {best.seed})"
    if paper is not None:
        digits -= 1
        summary = {one["row"]: f"{one['value']:.{digits}f}" for one in paper_summary()}
        cells["Valid, paper"] = _spread(paper.valid, digits)
        cells["Test, paper"] = _spread(paper.test, digits)
        cells["Best seed, paper"] = summary.get(paper.identifier, NONE)
    if ours:
        num_updates, num_tokens = row.budget or (None, None)
        cells["Seeds"] = str(len(ours)) + (f" of {paper.num_seeds}" if paper else "")
        cells["Updates"] = _range([one.num_updates for one in ours], num_updates) + mark
        cells["Tokens"] = _range([one.num_tokens for one in ours], num_tokens)
        cells["Parameters"] = _range([one.num_parameters for one in ours], None)
        cells["Time per run"] = clock(row.seconds) + shared
        if row.seconds_to_solve is not None:
            cells["Solved after"] = clock(row.seconds_to_solve.mean) + shared
    return cells


def _range(counts: Sequence[int], due: int | None) -> str:
    """Fewest and most, one number where they agree; and how many there should be."""
    found = " to ".join(map(short, sorted({min(counts), max(counts)})))
    return found if due is None else f"{found} of {short(due)}"


def _lengths(rows: Sequence[results.Row]) -> list[dict[str, str]]:
    """Test errors on episodes of other lengths, for the rows that have some."""
    lengths = sorted({length for row in rows for length in row.lengths})
    return [
        {
            "Row": row.label,
            **{f"{one:,}": _spread(row.length_error(one), results.ERROR.digits) for one in lengths},
            "Seeds": str(sum(bool(run.lengths) for run in row.runs)),
        }
        for row in rows
        if row.lengths
    ]


def orders(rows: Sequence[results.Row]) -> list[str]:
    """For each model of a corpus, the paper's order of its rows and Transformer-XL's, and ours.

    By test scores, where the paper has them for all rows.
    """
    known = [(row, row.paper) for row in rows if row.paper and row.measure is not results.ERROR]
    split: results.Split = "test" if all(paper.test for _, paper in known) else "valid"
    lines = []
    for model in dict.fromkeys(row.model for row, _ in known if row.model != "Transformer-XL"):
        # The paper's score, the row's label, and our score.
        chain: list[tuple[float, str, Spread | None]] = []
        for row, paper in known:
            printed = paper.test if split == "test" else paper.valid
            if printed and row.model in (model, "Transformer-XL"):
                label = f"{row.label} {MARK}" if row.is_shortened else row.label
                chain.append((printed.mean, label, row.score(split)))
        chain.sort(key=lambda one: one[:2])
        run = [(printed, label, ours.mean) for printed, label, ours in chain if ours]
        pairs = [(a, b) for a, b in itertools.combinations(run, 2) if a[0] < b[0]]
        broken = [f"{a[1]} {a[2]:.3f}, {b[1]} {b[2]:.3f}" for a, b in pairs if a[2] >= b[2]]
        verdict = f"does not hold ({'; '.join(broken)})" if broken else "holds"
        tied = itertools.groupby(chain, key=lambda one: one[0])
        names = " < ".join(" = ".join(label for _, label, _ in group) for _, group in tied)
        lines.append(f"{model}, {split}: {names}: {verdict if pairs else 'not run'}")
    return lines


def troubles(rows: Sequence[results.Row]) -> list[str]:
    """A line for every run that failed, diverged, did not learn or is unfinished."""
    lines = []
    for row in rows:
        for run in row.runs:
            name = f"{row.label}, seed {run.seed}: "
            if run.status == "failed":
                lines.append(f"{name}failed ({run.failure}); the next call tries again")
            elif run.status == "unfinished":
                lines.append(f"{name}unfinished; the next call resumes it")
            elif run.result is not None and run.status == "diverged":
                counted = "counts with its best weights" if run.result.test else "has no score"
                lines.append(
                    f"{name}diverged at update {run.result.num_updates:,} after "
                    f"{run.result.num_rollbacks} rollbacks; {counted}"
                )
            elif run.result is not None and run.result.outcome == "did not learn":
                lines.append(f"{name}did not learn: no better than the best constant guess")
    return lines


def _origin(report: Report) -> list[str]:
    runs = [run for row in report.rows for run in row.runs if run.environment]
    counts = Counter(_machine(run.environment) for run in runs)
    lines = [
        f"Run on {machine} ({count} run{'' if count == 1 else 's'})"
        for machine, count in counts.most_common()
    ]
    lines += [f"Scores are of {part}" for part in partial_scores(runs)]
    lines += [
        f"{row.label}, seed {run.seed}: stopped and resumed ({run.num_starts} starts)"
        for row in report.rows
        for run in row.runs
        if run.num_starts > 1
    ]
    lines.append(f"Written {report.written} on {_machine(report.environment)}")
    return [*lines, f"Command: {report.command}"]


def partial_scores(runs: Sequence[results.RunRecord]) -> list[str]:
    """The splits of which some run was scored on the first tokens only."""
    titles = {
        title(split, score)
        for run in runs
        if run.result is not None
        for split, score in run.result.scores.items()
    }
    return sorted(titles - {"valid", "test"})


def _machine(known: Mapping[str, Any]) -> str:
    """A machine and its packages."""
    packages = known.get("packages", {})
    versions = ", ".join(f"{name} {version}" for name, version in packages.items())
    machine = f"{known.get('device')}, {known.get('platform')}"
    return f"{machine}; Python {known.get('python')}, {versions}"


def _spread(spread: Spread | None, digits: int) -> str:
    return NONE if spread is None else spread.shown(digits)


def short(count: int) -> str:
    """A large number with three digits, as 3.28G, 65.5k or 12."""
    rounded = float(f"{count:.3g}")
    for letter, size in (("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if rounded >= size:
            return f"{rounded / size:.3g}{letter}"
    return str(count)


# The columns that a terminal has room for.
SCREEN = ("Row", "Valid, ours", "Test, ours", "Test, paper", "Seeds", "Updates", "Time per run")


def screen_table(report: Report) -> Table:
    """The main table for a terminal; rich fits it to the width of the screen.

    Rows that were not run are left out; the page has them.
    """
    cells_by_row = [table_cells(row) for row in report.rows]
    shown = [name for name in SCREEN if any(name in cells for cells in cells_by_row)]
    grid = Table(title=report.title, box=box.SIMPLE_HEAD, caption=results.unit(report.rows))
    for name in shown:
        grid.add_column(name, justify="left" if name == "Row" else "right", no_wrap=name == "Row")
    for row, cells in zip(report.rows, cells_by_row, strict=True):
        if row.runs:
            grid.add_row(*(cells.get(name, NONE) for name in shown))
    return grid
