"""A recipe built into objects: data, model, device."""

import os
from dataclasses import dataclass

import torch

from staircase_attention.models import LSTMSequenceModel, SequenceModel
from staircase_attention.tasks import load_task
from staircase_attention.training.dataset import CorpusData, Dataset, TaskData
from staircase_attention.training.recipe import LSTMModel, Recipe, TaskChoice

Model = SequenceModel | LSTMSequenceModel


@dataclass(frozen=True, kw_only=True, slots=True)
class NumSymbols:
    """All that a model must know of its data."""

    num_inputs: int
    num_outputs: int


def build_dataset(recipe: Recipe) -> Dataset:
    """The data that a recipe names."""
    if isinstance(recipe.task, TaskChoice):
        task = load_task(recipe.task.reference, **recipe.task.options)
        return TaskData(task, recipe.data_seed, recipe.training.growth)
    limit = recipe.training.evaluation_tokens
    return CorpusData(recipe.task, seed=recipe.data_seed, evaluation_tokens=limit)


def build_model(recipe: Recipe, data: Dataset | NumSymbols) -> Model:
    """The model that a recipe describes, for the symbols of its data."""
    model = recipe.model
    if isinstance(model, LSTMModel):
        return LSTMSequenceModel(
            vocab_size=data.num_inputs,
            output_size=data.num_outputs,
            width=model.width,
            num_layers=model.num_layers,
            dropout=model.dropout,
        )
    family = SequenceModel(
        vocab_size=data.num_inputs,
        output_size=data.num_outputs,
        core=model.core,
        schedule=model.schedule,
    )
    family.recompute = recipe.training.recompute
    return family


def check_recipe(recipe: Recipe) -> Dataset:
    """Refuse a recipe whose data or model cannot be built, before anything is written."""
    data = build_dataset(recipe)
    data.check()
    with torch.device("meta"):
        build_model(recipe, data)
    return data


def choose_device() -> torch.device:
    """A GPU if there is one: that of this process, if several processes run."""
    if torch.cuda.is_available():
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    return torch.device("cpu")


def precision_of(recipe: Recipe) -> torch.dtype:
    """The dtype of matrix products."""
    return {"float32": torch.float32, "bfloat16": torch.bfloat16}[recipe.training.precision]
