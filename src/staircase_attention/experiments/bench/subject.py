"""What is timed: a recipe, and the number of symbols that stand in for its data."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from staircase_attention.data import Corpus
from staircase_attention.data.manifest import MANIFEST
from staircase_attention.experiments.bench.gpt2 import gpt2_options
from staircase_attention.tasks import load_task
from staircase_attention.training import Recipe, TaskChoice
from staircase_attention.training.build import build_model

NUM_BYTES = 256
"""Symbols of a corpus of bytes that is not there."""
NUM_PIECES = 8008
"""Symbols of any other: those of the paper's Reddit models."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Subject:
    """One model that is timed."""

    recipe: Recipe
    """As it is run; for a model from elsewhere, the sizes and settings that it is given."""
    num_inputs: int
    """Input symbols."""
    num_outputs: int
    """Output symbols."""
    maker: Literal["staircase-attention", "transformers"] = "staircase-attention"
    """Whose model it is."""
    baseline: str | None = None
    """The subject whose time this one's is divided by."""

    @property
    def name(self) -> str:
        """The recipe's."""
        return self.recipe.name

    @property
    def carries_state(self) -> bool:
        """Whether an update goes on from the state that the one before it left."""
        task = self.recipe.task
        return isinstance(task, TaskChoice) or task.form == "stream"

    @property
    def tokens_per_update(self) -> int:
        """Tokens of all lanes."""
        training = self.recipe.training
        return training.num_lanes * training.segment_length

    def check(self) -> None:
        """Refuse a model that cannot be built, before anything is timed."""
        with torch.device("meta"):
            build_model(self.recipe, self)

    def to_plain(self) -> dict[str, Any]:
        """All that fixes what is timed."""
        return {
            "name": self.name,
            "maker": self.maker,
            "recipe": self.recipe.to_plain(),
            "options": gpt2_options(self) if self.maker == "transformers" else None,
            "num_inputs": self.num_inputs,
            "num_outputs": self.num_outputs,
            "carries_state": self.carries_state,
            "baseline": self.baseline,
        }


def subject_of(recipe: Recipe) -> Subject:
    """A recipe with its own data's symbols, or likely ones where its corpus is not there."""
    num_inputs, num_outputs = symbols_of(recipe)
    return Subject(recipe=recipe, num_inputs=num_inputs, num_outputs=num_outputs)


def symbols_of(recipe: Recipe) -> tuple[int, int]:
    """Input and output symbols of a recipe's data."""
    choice = recipe.task
    if isinstance(choice, TaskChoice):
        task = load_task(choice.reference, **choice.options)
        return task.num_inputs, task.num_outputs
    if Path(choice.folder, MANIFEST).is_file():
        size = Corpus.open(choice.folder).vocab_size
    else:
        size = NUM_BYTES if "enwik8" in choice.folder else NUM_PIECES
    return size, size
