"""Runs side by side: several rows, several seeds each, picked up where they stopped.

All rows with seed 0 come first, then all with seed 1, so that a report is worth reading long before
everything is done.
"""

import dataclasses
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from staircase_attention.checks import check_choice
from staircase_attention.experiments.lengths import check_lengths
from staircase_attention.experiments.paper import PaperTable
from staircase_attention.experiments.planned_run import PlannedRun
from staircase_attention.experiments.rows import Row
from staircase_attention.experiments.run_records import seed_folder, seeds_in
from staircase_attention.training.build import check_recipe
from staircase_attention.training.run_folder import RunFolder


@dataclass(frozen=True, kw_only=True, slots=True)
class Experiment:
    """Rows that are run and reported together."""

    title: str
    folder: Path
    rows: tuple[Row, ...]
    """All that the report lists."""
    wanted: tuple[str, ...]
    """The rows to be run now, by name."""
    num_seeds: int
    table: PaperTable | None = None
    """The paper's table that the rows are held against."""
    command: str = ""
    """By which a person can have it all again."""
    overrides: Mapping[str, Any] = field(default_factory=dict)
    """Settings in which the runs differ from the named recipes."""
    lengths: tuple[int, ...] = ()
    """Lengths of episodes on which all runs are scored besides."""
    is_table: bool = False
    """Whether the rows are a table's, whose errors are drawn against recurrent steps."""

    def __post_init__(self) -> None:
        check_count("seeds", self.num_seeds)

    @property
    def runs(self) -> list[PlannedRun]:
        """What has to be there in the end, in the order in which it is done."""
        return [self._run(row, seed) for seed in range(self.num_seeds) for row in self._chosen]

    def check(self) -> None:
        """Refuse, before any work is done, what could not be written or would be mixed up."""
        for row in self._chosen:
            check_lengths(row.recipe, self.lengths)
            if any(not self._run(row, seed).is_over for seed in range(self.num_seeds)):
                check_recipe(row.recipe)
        _check_folder(self.folder)
        for row in self._chosen:
            for seed in seeds_in(self.folder / row.name):
                self._run(row, seed).check()

    @property
    def _chosen(self) -> list[Row]:
        return [row for row in self.rows if row.name in self.wanted]

    def _run(self, row: Row, seed: int) -> PlannedRun:
        recipe = dataclasses.replace(row.recipe, seed=seed)
        folder = seed_folder(self.folder / row.name, seed)
        return PlannedRun(recipe=recipe, folder=folder, lengths=self.lengths)


def chosen_names(names: Sequence[str] | None, rows: Sequence[Row]) -> tuple[str, ...]:
    """The rows that are asked for, in the order of the table; all of them where none is named."""
    known = [row.name for row in rows]
    for name in names or ():
        check_choice("a row", name, known)
    return tuple(name for name in known if not names or name in names)


def this_command() -> str:
    """The command line by which this process was started."""
    program, *arguments = sys.argv
    return shlex.join([Path(program).name, *arguments])


def check_count(name: str, value: object) -> None:
    """Refuse what is no number of things to do.

    >>> check_count("seeds", 0)
    Traceback (most recent call last):
    ValueError: seeds must be a whole number of at least 1, got 0; give for example 3
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(
            f"{name} must be a whole number of at least 1, got {value!r}; give for example 3"
        )


def _check_folder(folder: Path) -> None:
    if RunFolder(folder).config.exists():
        raise ValueError(
            f"results need a folder of their own, got {str(folder)!r}, which is that of a run; "
            "name another with --output"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".probe"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise ValueError(
            f"results need a folder that can be written, got {str(folder)!r} ({error.strerror}); "
            "name another"
        ) from error
