"""From a recipe to trained weights: recipes, runs, checkpoints, packed runs."""

from typing import TYPE_CHECKING

from staircase_attention.lazy import lazy_names

if TYPE_CHECKING:
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
_NAMES = {
    "display": ["Display", "choose_display"],
    "loading": [
        "LanguageModel",
        "LoadedRun",
        "load_language_model",
        "load_run",
        "pack",
        "pretrained_names",
        "run_path",
    ],
    "processes": ["StopRequested", "is_first_process"],
    "run": ["default_folder", "resume", "train"],
    "run_folder": ["RunResult"],
}
_RECIPE = {*__all__} - {name for names in _NAMES.values() for name in names}
# Recipes can be read without PyTorch.
__getattr__ = lazy_names(__name__, {**_NAMES, "recipe": _RECIPE})
