"""A trainer that takes no time: it writes what the real one writes, with scores made up."""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path

from staircase_attention.files import write_json
from staircase_attention.training import Recipe, RunResult, StopRequested
from staircase_attention.training.run_folder import RunFolder

Error = Callable[[Recipe], float]


class FakeTrainer:
    """Remembers what it was asked, and does as it is told for some runs.

    `trouble` maps (recipe name, seed) to what happens in that run: 'fail', 'stop', 'interrupt',
    'diverge', or 'diverge without a score'. It happens once: the next attempt goes well.
    """

    def __init__(
        self, error: Error | None = None, trouble: Mapping[tuple[str, int], str] | None = None
    ) -> None:
        self.error = error or (lambda recipe: 0.25 + 0.01 * recipe.seed)
        self.trouble = dict(trouble or {})
        self.calls: list[tuple[str, str, int]] = []

    def train(self, recipe: Recipe, folder: Path, *, progress: object = None) -> RunResult:
        self.calls.append(("train", recipe.name, recipe.seed))
        place = RunFolder(folder)
        place.create(recipe)
        return self._finish(recipe, place)

    def resume(self, folder: Path, *, progress: object = None) -> RunResult:
        place = RunFolder(folder)
        recipe = place.recipe()
        self.calls.append(("resume", recipe.name, recipe.seed))
        assert not place.is_finished, "a finished run is not trained again"
        return self._finish(recipe, place)

    def _finish(self, recipe: Recipe, place: RunFolder) -> RunResult:
        trouble = self.trouble.pop((recipe.name, recipe.seed), None)
        if trouble == "fail":
            raise RuntimeError("CUDA out of\nmemory")
        if trouble == "stop":
            raise StopRequested(15, "stopped at update 1, saved")
        if trouble == "interrupt":
            raise KeyboardInterrupt
        error = self.error(recipe)
        write_metrics(place, recipe, error)
        result = make_result(recipe, error, trouble)
        write_json(place.result, asdict(result))
        return result


def write_metrics(place: RunFolder, recipe: Recipe, error: float) -> None:
    """A smooth way from chance to the final error."""
    config = recipe.training
    lines = []
    for update in range(config.evaluate_every, config.num_updates + 1, config.evaluate_every):
        left = math.exp(-6 * update / config.num_updates)
        score = {"loss": 1.0, "error": error + (0.95 - error) * left}
        lines.append({"kind": "train", "update": update, **score})
        lines.append({"kind": "valid", "update": update, **score})
    place.metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))


def make_result(recipe: Recipe, error: float, trouble: str | None = None) -> RunResult:
    config = recipe.training
    updates = config.num_updates // 2 if trouble else config.num_updates
    scores = {"loss": 4 * error, "error": error, "num_answers": 1000, "num_tokens": 1100}
    has_score = trouble != "diverge without a score"
    return RunResult(
        recipe=recipe.name,
        seed=recipe.seed,
        status="diverged" if trouble else "finished",
        num_updates=updates,
        num_tokens=updates * config.num_lanes * config.segment_length,
        num_parameters=3_177_024,
        wall_seconds=3725.0,
        device="NVIDIA H200",
        num_rollbacks=3 if trouble else 0,
        best_update=updates if has_score else None,
        valid=scores if has_score else None,
        test=scores | {"error": error + 0.001} if has_score else None,
    )
