"""From a recipe's words to data, a model and the place where it runs."""

import os

import torch

from staircase_attention.models import LSTMSequenceModel, SequenceModel
from staircase_attention.tasks import load_task
from staircase_attention.tasks.splits import try_out
from staircase_attention.training.corpus_data import CorpusData
from staircase_attention.training.dataset import Symbols, TaskData
from staircase_attention.training.recipe import LSTMModel, Recipe, TaskChoice

Model = SequenceModel | LSTMSequenceModel


def build_dataset(recipe: Recipe) -> TaskData | CorpusData:
    """The data that a recipe names."""
    if isinstance(recipe.task, TaskChoice):
        task = load_task(recipe.task.reference, **recipe.task.options)
        return TaskData(task, recipe.data_seed, recipe.training.growth)
    limit = recipe.training.evaluation_tokens
    return CorpusData(recipe.task, seed=recipe.data_seed, evaluation_tokens=limit)


def build_model(recipe: Recipe, data: Symbols) -> Model:
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
    family.fuse = recipe.training.engine == "fast"
    return family


def check_recipe(recipe: Recipe) -> TaskData | CorpusData:
    """Refuse a recipe whose data or model cannot be built, before anything is written."""
    data = build_dataset(recipe)
    if isinstance(data, CorpusData):
        data.check_splits()
    else:
        try_out(data.task, data.seed)
    with torch.device("meta"):
        build_model(recipe, data)
    return data


def choose_device() -> torch.device:
    """A GPU where there is one: the one of this process, where several run."""
    if torch.cuda.is_available():
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    return torch.device("cpu")


def precision_of(recipe: Recipe) -> torch.dtype:
    """The numbers of matrix products."""
    return {"float32": torch.float32, "bfloat16": torch.bfloat16}[recipe.training.precision]
