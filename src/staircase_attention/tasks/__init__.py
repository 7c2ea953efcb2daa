"""Where tokens come from: tasks, their splits, and the lanes that feed a model.

The way of the data: a `Task` generates `Episodes`; `split` and `training_source` fix which ones a
seed stands for; `Lanes` deals them into batches for training, `evaluation_batches` for the rest.
"""

from staircase_attention.batches import IGNORED, Batch
from staircase_attention.tasks.algorithm import Algorithm
from staircase_attention.tasks.asked import with_length
from staircase_attention.tasks.episodes import Episodes
from staircase_attention.tasks.growth import Growth
from staircase_attention.tasks.lanes import (
    Lanes,
    Position,
    evaluation_batches,
    lanes_of_process,
)
from staircase_attention.tasks.permutations import Permutations
from staircase_attention.tasks.random_walk import RandomWalk
from staircase_attention.tasks.registry import BUILT_IN, load_task
from staircase_attention.tasks.sources import Endless, Epochs, Source, training_source
from staircase_attention.tasks.splits import split
from staircase_attention.tasks.task import SplitSizes, Task

__all__ = [
    "BUILT_IN",
    "IGNORED",
    "Algorithm",
    "Batch",
    "Endless",
    "Episodes",
    "Epochs",
    "Growth",
    "Lanes",
    "Permutations",
    "Position",
    "RandomWalk",
    "Source",
    "SplitSizes",
    "Task",
    "evaluation_batches",
    "lanes_of_process",
    "load_task",
    "split",
    "training_source",
    "with_length",
]
