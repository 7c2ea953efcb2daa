"""Tasks, their splits, and the lanes that feed a model.

A `Task` generates `Episodes`; `split` and `training_source` determine those of a seed; `Lanes` puts
them into batches for training, `evaluation_batches` for evaluation.
"""

from staircase_attention.lazy import lazy_names

__all__, __getattr__, __dir__ = lazy_names(__name__, __file__)
