"""Start a run, or resume one, and bring it to its result."""

import contextlib
import itertools
import os
from collections.abc import Iterator
from pathlib import Path

from staircase_attention import files
from staircase_attention.checks import check_integer, input_error
from staircase_attention.display import Display
from staircase_attention.references import record_code
from staircase_attention.training import loading, processes
from staircase_attention.training.checkpoint import DAMAGE, WEIGHTS
from staircase_attention.training.dataset import CorpusData, build_dataset
from staircase_attention.training.learner import check_recipe
from staircase_attention.training.recipe import Recipe
from staircase_attention.training.run_folder import FORMAT, RunFolder, RunResult
from staircase_attention.training.trainer import Trainer


def train(
    recipe: Recipe,
    folder: str | os.PathLike[str],
    *,
    init: str | os.PathLike[str] | None = None,
    resume: bool = False,
    device: str | None = None,
    progress: Display | None = None,
) -> RunResult:
    """Start a run in a new folder and train it to its end.

    Args:
        folder: output folder; must be new or empty.
        init: a run to start from: its best weights, with a new optimiser.
        resume: if the folder holds a run of this recipe, resume it; a finished one gives its
            result at once.
        device: as cpu or cuda:1; by default a GPU if there is one.
    """
    given: object = recipe
    if not isinstance(given, Recipe):
        remedy = "pass a Recipe, as Recipe.from_plain({...}) makes of plain data"
        raise input_error("train takes a Recipe", type(given).__name__, remedy)
    # Values that could not be read back from config.json are refused here.
    recipe = Recipe.from_plain(given.to_plain())
    run_folder, facts, weights = RunFolder(folder), {}, None
    origin = None if init is None else os.fspath(init)
    if origin is not None and not origin.startswith(loading.PRETRAINED):
        # A resumed run may have to read the weights again, from another working folder.
        origin = str(Path(origin).resolve())
    # Nobody writes before all processes have joined, so all of them see the same folder here.
    if resume and not run_folder.is_unbegun:
        run_folder.require_same(recipe, origin)
        return _resume(run_folder, recipe, None, device, progress)
    data = check_recipe(recipe)
    tokeniser = data.corpus.tokeniser if isinstance(data, CorpusData) else None
    run_folder.require_unbegun()
    if origin is not None:
        start = RunFolder(loading.run_path(origin))
        remedy = "pack a checkpoint of it with `staircase pack --checkpoint`, and start from that"
        weights = loading.read_weights(start, "best", remedy)
        if isinstance(data, CorpusData):
            remedy = "prepare the same text with that, or start from another run"
            loading.check_tokeniser(start, data.corpus.folder, remedy)
        loading.check_fit(recipe, data, weights.shapes, origin, "choose a run of this model")
        facts["init"] = {"run": origin, "update": weights.update}
    # Nothing is written before the data and the model are there.
    with (
        _trainer(recipe, run_folder, progress, weights, device) as trainer,
        run_folder.started(recipe, tokeniser, trainer.device, **facts),
    ):
        trainer.processes.wait()
        trainer.display.say(f"run folder: {run_folder.path}")
        if trainer.processes.is_first:
            try:
                record_code(recipe.to_plain())
            except OSError as error:
                trainer.display.say(
                    f"the run's code could not be recorded as trusted ({error}); it is resumed "
                    "and evaluated with --trust-code"
                )
        return trainer.run()


def resume(
    folder: str | os.PathLike[str],
    *,
    num_updates: int | None = None,
    device: str | None = None,
    trust_code: bool = False,
    progress: Display | None = None,
) -> RunResult:
    """Continue a run from its latest checkpoint; a finished one gives its result at once.

    Args:
        num_updates: the run's new number of updates in all, also for a finished run. The learning
            rate follows the new number from here on.
        device: as cpu or cuda:1; by default a GPU if there is one.
        trust_code: execute code that the run names even if this user never trained with it.
    """
    run_folder = RunFolder(loading.run_path(folder))
    recipe = run_folder.recipe(trust_code=trust_code)
    return _resume(run_folder, recipe, num_updates, device, progress)


def _resume(
    run_folder: RunFolder,
    recipe: Recipe,
    num_updates: int | None,
    device: str | None,
    progress: Display | None,
) -> RunResult:
    if run_folder.is_packed and (num_updates is not None or not run_folder.is_finished):
        received = f"{run_folder.path}, which is packed and has none"
        remedy = "name the folder that it was packed from, or start a new run with train --init"
        raise input_error("a run is resumed from its checkpoints", received, remedy)
    if num_updates is None and run_folder.is_finished:
        # Without a lock: a finished run may be read by many at once.
        return run_folder.read_result()
    with run_folder.locked():
        if num_updates is not None:
            recipe = _extend(run_folder, recipe, num_updates)
        init, weights = run_folder.read_config().get("init"), None
        # After the first checkpoint the run has weights of its own, and the other may be gone.
        if init is not None and not run_folder.checkpoints.names():
            with files.as_written("init in config.json", init, "restore config.json"):
                weights = loading.read_weights(
                    RunFolder(loading.run_path(init["run"])), init["update"], "restore it"
                )
        shapes = None if weights is None else weights.shapes
        for name in run_folder.checkpoints.names():
            # A damaged checkpoint is reported, and set aside, where it is read.
            with contextlib.suppress(*DAMAGE):
                shapes = files.tensor_shapes(run_folder.checkpoints.path / str(name) / WEIGHTS)
        if shapes is not None:
            # Before a model of the recipe's size is built.
            remedy = "take config.json from its run"
            loading.check_fit(recipe, build_dataset(recipe), shapes, run_folder.path, remedy)
        with _trainer(recipe, run_folder, progress, weights, device) as trainer:
            return trainer.run()


def _extend(run_folder: RunFolder, recipe: Recipe, num_updates: int) -> Recipe:
    """The recipe with another number of updates, which config.json then has too."""
    names = run_folder.checkpoints.names()
    done = names[-1].update if names else 0
    check_integer("num_updates", num_updates, minimum=1, example=done + 1000)
    if num_updates <= done:
        rule = "num_updates must be more than the run has done"
        received = f"{num_updates} for {run_folder.path} with {done}"
        raise input_error(rule, received, f"use for example {done + 1000}")
    recipe = recipe.override({"training.num_updates": num_updates})
    if processes.is_first_process():
        config = run_folder.read_config() | {"format": FORMAT, "recipe": recipe.to_plain()}
        # In this order, a kill in between leaves a run that is scored again.
        run_folder.result.unlink(missing_ok=True)
        run_folder.write({run_folder.config.name: config})
    return recipe


@contextlib.contextmanager
def _trainer(
    recipe: Recipe,
    run_folder: RunFolder,
    progress: Display | None,
    weights: loading.SavedWeights | None,
    device: str | None,
) -> Iterator[Trainer]:
    """The trainer of a run, with these initial weights; signals and full disks end it in order."""
    place = processes.choose_device(device)
    joined = processes.join_processes(place, recipe.training.stall_seconds)
    display = progress if progress is not None and joined.is_first else Display()
    recorded = run_folder.read_environment().get("num_threads")
    threads = processes.chosen_threads(place, recorded, display.say)
    space = files.needing_space("a run", run_folder.path, run_folder.clear_full_disk)
    with threads, space, processes.stop_requests() as stop:
        trainer = Trainer(recipe, run_folder, place, joined, display, stop)
        if weights is not None:
            trainer.learner.load_weights(weights.tensors)
        yield trainer


def default_folder(recipe: Recipe, base: str | os.PathLike[str] = "runs") -> Path:
    """A new folder for a run that was given none: the first free number under its recipe."""
    parent = Path(base) / recipe.name
    rule, remedy = "runs need a folder that can be written", "name another with --output"
    with files.writing(rule, parent, remedy):
        files.make_folder(parent)
        for number in itertools.count(1):
            folder = parent / f"{number:03d}"
            # Made at once, so that two runs that start together get different folders.
            with contextlib.suppress(FileExistsError):
                folder.mkdir()
                break
        files.sync(parent)
    return folder
