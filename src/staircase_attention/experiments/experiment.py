"""An experiment: rows of recipes, several seeds each, and the run folder of every one.

All rows with seed 0 come first, then all with seed 1, so that a report is useful long before
everything is done.
"""

import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from staircase_attention.checks import check_integer, input_error
from staircase_attention.experiments.catalog import Row
from staircase_attention.experiments.lengths import check_lengths, missing_lengths
from staircase_attention.experiments.paper import PaperTable
from staircase_attention.experiments.results import beside, seed_folder, seeds_in
from staircase_attention.files import write_json, write_whole
from staircase_attention.training import Recipe
from staircase_attention.training.learner import check_recipe
from staircase_attention.training.run_folder import RunFolder

# -P: the working folder is no place to import packages from.
STAIRCASE = [sys.executable, "-P", "-m", "staircase_attention"]
LENGTHS = [sys.executable, "-P", "-m", "staircase_attention.experiments.lengths"]
TORCHRUN = [sys.executable, "-P", "-m", "torch.distributed.run", "--standalone"]


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedRun:
    """A recipe with its seed, and the folder in which it runs."""

    recipe: Recipe
    folder: Path
    lengths: tuple[int, ...] = ()
    """Episode lengths at which its best weights are also scored."""

    @property
    def title(self) -> str:
        """The recipe's name and the seed."""
        return f"{self.recipe.name}, seed {self.recipe.seed}"

    @property
    def is_trained(self) -> bool:
        """Whether it has a result, good or bad."""
        return RunFolder(self.folder).is_finished

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to do: it has a result, all scores, and no failure on record."""
        if beside(self.folder, "failure.txt").exists():
            return False
        return self.is_trained and not self._missing_lengths

    @property
    def _missing_lengths(self) -> list[int]:
        """Lengths still to be scored; none for a run that diverged without a good checkpoint."""
        has_weights = RunFolder(self.folder).read_result().best_update is not None
        return missing_lengths(self.folder, self.lengths) if has_weights else []

    def check(self) -> None:
        """Refuse to resume a run whose recipe was another."""
        folder = RunFolder(self.folder)
        if folder.is_unbegun:
            return
        began, wanted = folder.recipe().to_plain(), self.recipe.to_plain()
        if began != wanted:
            path, old, new = first_difference(began, wanted)
            raise input_error(
                "a run is resumed with the recipe it began with",
                f"{path} = {new!r} for {self.folder}, which has {old!r}",
                f"use {old!r} again, or name another folder",
            )

    def next_command(self, *, processes: int = 1) -> list[str] | None:
        """The command that brings the run further: train, resume, or score; None when it is over.

        A recipe need not have a name on the command line, so `train` gets it as a file.
        """
        torchrun = [*TORCHRUN, f"--nproc-per-node={processes}", "--no-python"]
        staircase = [*torchrun, *STAIRCASE] if processes > 1 else STAIRCASE
        if RunFolder(self.folder).is_unbegun:
            recipe = beside(self.folder, "recipe.json")
            recipe.parent.mkdir(parents=True, exist_ok=True)
            write_json(recipe, self.recipe.to_plain())
            beside(self.folder, "shared.txt").unlink(missing_ok=True)
            return [*staircase, "train", str(recipe), "--output", str(self.folder), "--quiet"]
        if not self.is_trained:
            return [*staircase, "resume", str(self.folder), "--quiet"]
        lengths = self._missing_lengths
        if lengths:
            return [*LENGTHS, str(self.folder), *map(str, lengths)]
        return None

    def note_shared(self) -> None:
        """Record beside the run that other runs ran at the same time, so its times are theirs."""
        note = beside(self.folder, "shared.txt")
        # The disk may be full; that must not end a run because of a note.
        with suppress(OSError):
            if self.folder.exists() and not note.exists():
                write_whole(note, b"Other runs ran at the same time as this one.\n")


def first_difference(old: Any, new: Any, path: str = "") -> tuple[str, Any, Any]:  # noqa: ANN401
    """The first path at which two plain configs differ, and both values there.

    >>> first_difference({"a": 1, "b": {"c": 2}}, {"a": 1, "b": {"c": 3}})
    ('b.c', 2, 3)
    """
    if isinstance(old, dict) and isinstance(new, dict):
        for name in [*new, *(name for name in old if name not in new)]:
            if old.get(name) != new.get(name):
                inner = f"{path}.{name}" if path else name
                return first_difference(old.get(name), new.get(name), inner)
    return path, old, new


@dataclass(frozen=True, kw_only=True, slots=True)
class Experiment:
    """Rows that are run and reported together."""

    title: str
    folder: Path
    rows: tuple[Row, ...]
    """All that the report lists."""
    wanted: tuple[str, ...]
    """The names of the rows to run now."""
    num_seeds: int
    table: PaperTable | None = None
    """The paper's table that the rows are compared with."""
    command: str = ""
    """The command line that runs the experiment."""
    overrides: Mapping[str, Any] = field(default_factory=dict)
    """Settings in which the runs differ from the named recipes."""
    lengths: tuple[int, ...] = ()
    """Episode lengths at which all runs are also scored."""
    is_table: bool = False
    """Whether the rows are a table's, whose errors are drawn against recurrent steps."""

    def __post_init__(self) -> None:
        check_integer("seeds", self.num_seeds, minimum=1, example=3)

    @property
    def runs(self) -> list[PlannedRun]:
        """All runs, in the order in which they start."""
        return [self._run(row, seed) for seed in range(self.num_seeds) for row in self._chosen]

    def check(self) -> None:
        """Refuse, before any work is done, what cannot be built, written, or resumed."""
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
        recipe = replace(row.recipe, seed=seed)
        folder = seed_folder(self.folder / row.name, seed)
        return PlannedRun(recipe=recipe, folder=folder, lengths=self.lengths)


def _check_folder(folder: Path) -> None:
    if RunFolder(folder).config.exists():
        raise input_error(
            "results need a folder of their own",
            f"{str(folder)!r}, which is a run folder",
            "name another with --output",
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".probe"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise input_error(
            "results need a writable folder", f"{str(folder)!r} ({error.strerror})", "name another"
        ) from error
