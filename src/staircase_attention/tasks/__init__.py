"""Tasks, their splits, and the lanes that feed a model.

A `Task` generates `Episodes`; `split` and `training_source` determine those of a seed; `Lanes` puts
them into batches for training, `evaluation_batches` for evaluation.
"""

from staircase_attention.batches import IGNORED, Batch
from staircase_attention.tasks.algorithm import Algorithm
from staircase_attention.tasks.episodes import Episodes
from staircase_attention.tasks.lanes import (
    Growth,
    Lanes,
    Position,
    evaluation_batches,
    lanes_of_process,
)
from staircase_attention.tasks.permutations import Permutations
from staircase_attention.tasks.random_walk import RandomWalk
from staircase_attention.tasks.registry import BUILT_IN, load_task
from staircase_attention.tasks.splits import (
    Endless,
    EpisodeSource,
    Epochs,
    split,
    training_source,
    with_length,
)
from staircase_attention.tasks.task import SplitSizes, Task

__all__ = [
    "BUILT_IN",
    "IGNORED",
    "Algorithm",
    "Batch",
    "Endless",
    "EpisodeSource",
    "Episodes",
    "Epochs",
    "Growth",
    "Lanes",
    "Permutations",
    "Position",
    "RandomWalk",
    "SplitSizes",
    "Task",
    "evaluation_batches",
    "lanes_of_process",
    "load_task",
    "split",
    "training_source",
    "with_length",
]
