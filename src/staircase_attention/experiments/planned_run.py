"""One run that has to be there in the end: begun, continued, or found as it should be."""

import traceback
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from staircase_attention.experiments.lengths import missing_lengths, score_lengths
from staircase_attention.experiments.run_records import (
    failure_file,
    read_recipe,
    shared_file,
)
from staircase_attention.files import write_whole
from staircase_attention.training import Display, Recipe, StopRequested, is_first_process
from staircase_attention.training.run_folder import RunFolder, RunInUseError


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
    lengths: tuple[int, ...] = ()
    """Lengths of episodes on which its best weights are scored besides."""

    @property
    def title(self) -> str:
        """What tells it from the others."""
        return f"{self.recipe.name}, seed {self.recipe.seed}"

    @property
    def is_over(self) -> bool:
        """Whether it has a result, good or bad, and a score for every length if it can have one.

        After an error it is not, whoever brought it to its end since: the next attempt clears up.
        """
        if not self.is_trained or failure_file(self.folder).exists():
            return False
        has_weights = RunFolder(self.folder).read_result().best_update is not None
        return not (has_weights and missing_lengths(self.folder, self.lengths))

    @property
    def is_trained(self) -> bool:
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
        failure_file(self.folder).unlink(missing_ok=True)
        try:
            place = RunFolder(self.folder)
            if not place.config.exists():
                shared_file(self.folder).unlink(missing_ok=True)
                train(self.recipe, self.folder, progress=progress)
            elif not place.is_finished:
                resume(self.folder, progress=progress)
            if is_first_process() and not self.is_over:
                score_lengths(self.folder, self.lengths)
        except StopRequested:
            raise
        except RunInUseError as error:
            # No failure: somebody else brings it to its end.
            if progress is not None:
                progress.say(str(error))
        except Exception as error:
            self.write_failure(f"{type(error).__name__}: {error}", traceback.format_exc())

    def write_failure(self, reason: str, details: str = "") -> None:
        """Write down beside the run what ended it: the reason in one line, then the details."""
        failure = failure_file(self.folder)
        failure.parent.mkdir(parents=True, exist_ok=True)
        line = " ".join(reason.split())
        write_whole(failure, f"{line}\n\n{details}".encode())

    def note_shared(self) -> None:
        """Write down beside the run, once it has begun, that its times are not its own."""
        note = shared_file(self.folder)
        # A disk may be full; no run is to end for the sake of a remark.
        with suppress(OSError):
            if self.folder.exists() and not note.exists():
                write_whole(note, b"Other runs were under way beside this one.\n")


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
