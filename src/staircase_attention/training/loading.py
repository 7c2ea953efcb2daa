"""A trained model out of a run folder."""

import os
from dataclasses import dataclass

from staircase_attention.training.build import Model, build_model
from staircase_attention.training.checkpoint import WEIGHTS, CheckpointName, DamagedCheckpointError
from staircase_attention.training.dataset import TaskData, build_dataset
from staircase_attention.training.recipe import Recipe
from staircase_attention.training.run_folder import RunFolder


@dataclass(frozen=True, slots=True)
class LoadedRun:
    """A run's recipe and data, and its model with trained weights."""

    recipe: Recipe
    data: TaskData
    model: Model
    update: int
    """The update after which the weights were as they are."""


def load_run(folder: str | os.PathLike[str], *, checkpoint: str = "best") -> LoadedRun:
    """The model of a run: `best` on the validation data, `latest`, or a number of updates."""
    place = RunFolder(folder)
    recipe = place.recipe()
    data = build_dataset(recipe)
    name = _choose(place, checkpoint)
    try:
        weights = place.checkpoints.read(name).tensors[WEIGHTS]
    except DamagedCheckpointError as error:
        raise ValueError(
            f"a checkpoint must be as it was written, got {error}; name another with --checkpoint"
        ) from error
    model = build_model(recipe, data)
    model.load_state_dict(weights)
    return LoadedRun(recipe=recipe, data=data, model=model.eval(), update=name.update)


def _choose(place: RunFolder, wanted: str) -> CheckpointName:
    names = place.checkpoints.names()
    if not names:
        raise ValueError(
            f"a run must have saved a checkpoint to be loaded, got {place.path} with none; "
            f"go on with it: staircase resume {place.path}"
        )
    if wanted == "latest":
        return names[-1]
    if wanted == "best":
        return _best(place, names)
    matching = [name for name in names if str(name.update) == wanted]
    if not matching:
        known = ", ".join(str(name.update) for name in names)
        raise ValueError(
            f"a checkpoint is best, latest or one of the updates {known}, got {wanted!r}; "
            "choose one of these"
        )
    return matching[-1]


def _best(place: RunFolder, names: list[CheckpointName]) -> CheckpointName:
    """The best by the latest checkpoint's own account, or the latest before any evaluation."""
    progress = place.checkpoints.read_trainer(names[-1])["progress"]
    if progress["best_update"] is None:
        return names[-1]
    return CheckpointName(num_rollbacks=progress["best_rollbacks"], update=progress["best_update"])
