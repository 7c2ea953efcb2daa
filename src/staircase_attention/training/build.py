"""From a recipe's words to a task, a model and the place where it runs."""

import os

import torch

from staircase_attention.models import LSTMSequenceModel, SequenceModel
from staircase_attention.tasks import Task, load_task
from staircase_attention.training.recipe import LSTMModel, Recipe

Model = SequenceModel | LSTMSequenceModel


def build_task(recipe: Recipe) -> Task:
    """The task that a recipe names."""
    return load_task(recipe.task.reference, **recipe.task.options)


def build_model(recipe: Recipe, task: Task) -> Model:
    """The model that a recipe describes, for the symbols of its task."""
    model = recipe.model
    if isinstance(model, LSTMModel):
        return LSTMSequenceModel(
            vocab_size=task.num_inputs,
            output_size=task.num_outputs,
            width=model.width,
            num_layers=model.num_layers,
            dropout=model.dropout,
        )
    family = SequenceModel(
        vocab_size=task.num_inputs,
        output_size=task.num_outputs,
        core=model.core,
        schedule=model.schedule,
    )
    family.recompute = recipe.training.recompute
    return family


def check_recipe(recipe: Recipe) -> None:
    """Refuse a recipe whose task or model cannot be built, before anything is written."""
    with torch.device("meta"):
        build_model(recipe, build_task(recipe))


def choose_device() -> torch.device:
    """A GPU where there is one: the one of this process, where several run."""
    if torch.cuda.is_available():
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    return torch.device("cpu")


def precision_of(recipe: Recipe) -> torch.dtype:
    """The numbers of matrix products."""
    return {"float32": torch.float32, "bfloat16": torch.bfloat16}[recipe.training.precision]
