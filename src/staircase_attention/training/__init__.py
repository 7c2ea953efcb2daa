"""From a recipe to trained weights: recipes, runs, checkpoints, packed runs."""

from staircase_attention.training.display import Display, choose_display
from staircase_attention.training.loading import (
    LanguageModel,
    LoadedRun,
    load_language_model,
    load_run,
    pack,
    pretrained_names,
    run_path,
)
from staircase_attention.training.processes import StopRequested, is_first_process
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
from staircase_attention.training.run import default_folder, resume, train
from staircase_attention.training.run_folder import RunResult

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
