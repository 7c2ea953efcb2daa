"""One run that has to be there in the end: begun, continued, or found as it should be."""

import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from staircase_attention.experiments.run_records import failure_file, read_recipe
from staircase_attention.training import Display, Recipe, StopRequested
from staircase_attention.training.run_folder import RunFolder


class Train(Protocol):
    """Begins a run in a new folder and brings it to its end."""

    def __call__(self, recipe: Recipe, folder: Path, *, progress: Display | None = None) -> object:
        """As `staircase_attention.training.train`."""


class Resume(Protocol):
    """Goes on with the run in a folder."""

    def __call__(self, folder: Path, *, progress: Display | None = None) -> object:
        """As `staircase_attention.training.resume`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedRun:
    """A recipe with its seed, and the folder in which it runs."""

    recipe: Recipe
    folder: Path

    @property
    def is_over(self) -> bool:
        """Whether it has a result, good or bad."""
        return RunFolder(self.folder).is_finished

    def check(self) -> None:
        """Refuse to go on with a run that began otherwise."""
        began = read_recipe(self.folder)
        if began is None or began.to_plain() == self.recipe.to_plain():
            return
        path, old, new = first_difference(began.to_plain(), self.recipe.to_plain())
        raise ValueError(
            f"a run goes on with the recipe it began with, got {path} = {new!r} for {self.folder}, "
            f"which has {old!r}; ask for {old!r} again, or name another folder"
        )

    def carry_out(self, train: Train, resume: Resume, progress: Display | None) -> None:
        """Begin or go on; an error is written down beside the run and leaves the others alone."""
        failure = failure_file(self.folder)
        failure.unlink(missing_ok=True)
        try:
            if RunFolder(self.folder).config.exists():
                resume(self.folder, progress=progress)
            else:
                train(self.recipe, self.folder, progress=progress)
        except StopRequested:
            raise
        except Exception as error:
            failure.parent.mkdir(parents=True, exist_ok=True)
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            failure.write_text(f"{reason}\n\n{traceback.format_exc()}", encoding="utf-8")


def first_difference(old: Any, new: Any, path: str = "") -> tuple[str, Any, Any]:  # noqa: ANN401
    """Where two plain configs differ first, and what each has there.

    >>> first_difference({"a": 1, "b": {"c": 2}}, {"a": 1, "b": {"c": 3}})
    ('b.c', 2, 3)
    """
    if isinstance(old, dict) and isinstance(new, dict):
        for name in [*new, *(name for name in old if name not in new)]:
            if old.get(name) != new.get(name):
                inner = f"{path}.{name}" if path else name
                return first_difference(old.get(name), new.get(name), inner)
    return path, old, new
