"""Scores of trained models on episodes of other lengths, kept in the run folder.

    python -m staircase_attention.experiments.lengths RUN LENGTH...

scores a run's best weights on test episodes of these lengths.
"""

import json
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from staircase_attention.checks import input_error
from staircase_attention.evaluation import Score
from staircase_attention.files import read_json, write_json
from staircase_attention.tasks import load_task, split, with_length
from staircase_attention.training import Recipe, TaskChoice, load_run
from staircase_attention.training.dataset import TaskData
from staircase_attention.training.processes import choose_device
from staircase_attention.training.trainer import score_split

FILE = "lengths.json"
"""In a run folder: for each length, the score of the best weights on test episodes."""


def check_lengths(recipe: Recipe, lengths: Sequence[int]) -> None:
    """Refuse lengths that a recipe's task cannot have, before anything is run."""
    if not lengths:
        return
    if not isinstance(recipe.task, TaskChoice):
        raise input_error(
            "lengths are for tasks with episodes",
            f"{recipe.name}, which trains on a corpus",
            "leave them out",
        )
    for length in lengths:
        _draw(recipe.task.reference, json.dumps(recipe.task.options), recipe.data_seed, length)


@cache
def _draw(reference: str, options: str, seed: int, length: int) -> None:
    """Check that a task has test episodes of a length; cached, as rows share their task."""
    split(with_length(load_task(reference, **json.loads(options)), length), "test", seed)


def read_lengths(run: Path) -> dict[int, Score]:
    """The scores that a run has so far, by length."""
    try:
        plain = read_json(run / FILE)
        return {int(length): Score(**score) for length, score in plain.items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise input_error(
            f"a run's {FILE} must be unchanged",
            f"{run / FILE} ({type(error).__name__})",
            "delete it, and the lengths will be scored again",
        ) from error


def missing_lengths(run: Path, lengths: Sequence[int]) -> list[int]:
    """The lengths for which a run has no score yet."""
    known = read_lengths(run)
    return [length for length in lengths if length not in known]


def score_lengths(run: Path, lengths: Sequence[int]) -> None:
    """Score a run's best weights on test episodes of the lengths that have no score yet."""
    missing, scores = missing_lengths(run, lengths), read_lengths(run)
    if not missing:
        return
    loaded, device = load_run(run), choose_device()
    assert isinstance(loaded.data, TaskData), "checked before the run"
    model = loaded.model.to(device)
    for length in missing:
        data = loaded.data.with_length(length)
        scores[length] = score_split(model, data, "test", recipe=loaded.recipe, device=device)
        write_json(run / FILE, {str(one): scores[one].to_plain() for one in sorted(scores)})


if __name__ == "__main__":
    score_lengths(Path(sys.argv[1]), [int(length) for length in sys.argv[2:]])
