"""From a recipe to trained weights, with nothing lost on the way."""

from staircase_attention.training.display import Display, choose_display
from staircase_attention.training.loading import (
    LanguageModel,
    LoadedRun,
    load_language_model,
    load_run,
    pack,
)
from staircase_attention.training.packed import pretrained_names, run_path
from staircase_attention.training.processes import is_first_process
from staircase_attention.training.recipe import (
    CorpusChoice,
    DivergenceConfig,
    FamilyModel,
    LSTMModel,
    OptimizerConfig,
    Recipe,
    TaskChoice,
    TrainingConfig,
)
from staircase_attention.training.run import RunResult, default_folder, resume, train
from staircase_attention.training.signals import StopRequested

__all__ = [
    "CorpusChoice",
    "Display",
    "DivergenceConfig",
    "FamilyModel",
    "LSTMModel",
    "LanguageModel",
    "LoadedRun",
    "OptimizerConfig",
    "Recipe",
    "RunResult",
    "StopRequested",
    "TaskChoice",
    "TrainingConfig",
    "choose_display",
    "default_folder",
    "is_first_process",
    "load_language_model",
    "load_run",
    "pack",
    "pretrained_names",
    "resume",
    "run_path",
    "train",
]
