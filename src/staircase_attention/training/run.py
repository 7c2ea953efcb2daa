"""Begin a run, go on with one, bring it to its result."""

import contextlib
import itertools
import math
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

from staircase_attention.files import FULL_DISK, read_json, write_json
from staircase_attention.training.build import check_recipe, choose_device
from staircase_attention.training.corpus_data import CorpusData
from staircase_attention.training.display import Display, Silent
from staircase_attention.training.processes import is_first_process, joined_processes
from staircase_attention.training.recipe import Recipe
from staircase_attention.training.run_folder import RunFolder, device_name
from staircase_attention.training.signals import StopRequested, wishes_to_stop
from staircase_attention.training.trainer import DivergedError, Trainer
from staircase_attention.training.trust import record_code

Done = TypeVar("Done")
ScoredSplit = Literal["valid", "test"]
"""The splits on which a run is scored in the end."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunResult:
    """What came of a run: its scores, and the budget that it really had."""

    recipe: str
    seed: int
    status: Literal["finished", "diverged"]
    num_updates: int
    num_tokens: int
    num_parameters: int
    wall_seconds: float
    device: str
    num_rollbacks: int
    best_update: int | None
    """The update whose weights were scored: the best on the validation data."""
    valid: dict[str, Any] | None
    test: dict[str, Any] | None


def train(
    recipe: Recipe, folder: str | os.PathLike[str], *, progress: Display | None = None
) -> RunResult:
    """Begin a run in a new folder and bring it to its end."""
    # What has been written must be read again, by whoever goes on with the run or uses its model.
    recipe = Recipe.from_plain(recipe.to_plain())
    data = check_recipe(recipe)
    tokeniser = data.corpus.tokeniser if isinstance(data, CorpusData) else None
    place = RunFolder(folder)
    with place.begun(recipe, tokeniser):
        if is_first_process():
            record_code(recipe.to_plain())
        if progress is not None and is_first_process():
            progress.say(f"run folder: {place.path}")
        return _go(recipe, place, progress)


def resume(
    folder: str | os.PathLike[str], *, trust_code: bool = False, progress: Display | None = None
) -> RunResult:
    """Go on with a run where it stood; a finished one gives its result at once."""
    place = RunFolder(folder)
    recipe = place.recipe(trust_code=trust_code)
    if place.is_finished:
        return read_result(place)
    if place.is_packed:
        raise ValueError(
            f"a run goes on from its checkpoints, got {place.path}, which is packed and has none; "
            "name the folder that it was packed from"
        )
    with place.locked():
        return _go(recipe, place, progress)


def read_result(place: RunFolder) -> RunResult:
    """The result of a finished run."""
    try:
        result = RunResult(**read_json(place.result))
        for score in (result.valid, result.test):
            # Words, or nothing, in place of numbers would be noticed only where they are printed.
            if score is not None:
                math.isnan(score["loss"] + score["error"])
        return result
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ValueError(
            f"a run's result.json must be as the trainer wrote it, got {place.result} "
            f"({type(error).__name__}); delete it, and the run will be scored again"
        ) from error


def _go(recipe: Recipe, place: RunFolder, progress: Display | None) -> RunResult:
    """Bring a run to its end, in a folder that is locked."""
    device = choose_device()
    with joined_processes(device) as processes, wishes_to_stop() as wish:
        display = (progress or Silent()) if processes.is_first else Silent()
        trainer = Trainer(
            recipe, place, device=device, processes=processes, display=display, wish=wish
        )
        result = _with_room(lambda: _finish(trainer), place)
        if processes.is_first:
            place.require_own()
            _with_room(lambda: write_json(place.result, asdict(result)), place)
        if wish.number:
            raise StopRequested(wish.number, f"stopped after {place.path} was {result.status}")
        return result


def _finish(trainer: Trainer) -> RunResult:
    """Train, then score the best weights."""
    status: Literal["finished", "diverged"] = "finished"
    try:
        trainer.run()
    except DivergedError as error:
        status = "diverged"
        trainer.display.say(str(error))
    stands = trainer.progress
    scores: dict[str, Any] = {"valid": None, "test": None}
    if stands.best is not None:
        trainer.load_best_weights()
    if stands.best is None:
        status = "diverged"
    else:
        scores = {name: trainer.describe(name) for name in get_args(ScoredSplit)}
    return RunResult(
        recipe=trainer.recipe.name,
        seed=trainer.recipe.seed,
        status=status,
        num_updates=stands.update,
        num_tokens=stands.num_tokens,
        num_parameters=trainer.learner.model.num_parameters,
        wall_seconds=round(stands.wall_seconds, 3),
        device=device_name(),
        num_rollbacks=stands.num_rollbacks,
        best_update=stands.best_update,
        valid=scores["valid"],
        test=scores["test"],
    )


def _with_room(work: Callable[[], Done], place: RunFolder) -> Done:
    """Do some work; say it plainly if the disk is full, and leave nothing half-written."""
    try:
        return work()
    except OSError as error:
        if error.errno not in FULL_DISK:
            raise
        place.checkpoints.abandon()
        names = place.checkpoints.names()
        remedy = "free some room and begin again"
        if names:
            remedy = (
                f"the checkpoint of update {names[-1].update:,} is whole: free some room and go on "
                f"with: {place.resume_command}"
            )
        raise OSError(
            f"a run needs room on its disk, got none at {place.path} ({error.strerror}); {remedy}"
        ) from error


def default_folder(recipe: Recipe, base: str | os.PathLike[str] = "runs") -> Path:
    """A new folder for a run that was given none: the first free number under its recipe."""
    parent = Path(base) / recipe.name
    try:
        parent.mkdir(parents=True, exist_ok=True)
        for number in itertools.count(1):
            folder = parent / f"{number:03d}"
            # Made at once, so that two runs that begin at the same time do not get the same one.
            with contextlib.suppress(FileExistsError):
                folder.mkdir()
                break
    except OSError as error:
        raise ValueError(
            f"runs need a folder that can be written, got {parent} ({error.strerror}); "
            "name another with --output"
        ) from error
    return folder
