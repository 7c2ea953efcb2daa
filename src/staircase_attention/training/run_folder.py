"""A run on disk: its files, its lock, its metrics, its result."""

import contextlib
import json
import math
import os
import platform
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

import torch
from torch.utils.tensorboard import SummaryWriter

from staircase_attention.checks import input_error
from staircase_attention.data import Tokeniser
from staircase_attention.files import (
    FULL_DISK,
    PARTIAL,
    locked,
    make_folder,
    read_json,
    save_folder,
    sync,
    write_json,
)
from staircase_attention.references import require_trusted_code
from staircase_attention.training.checkpoint import WEIGHTS, CheckpointFolder
from staircase_attention.training.plain import differences
from staircase_attention.training.processes import is_first_process
from staircase_attention.training.recipe import Recipe

# Of config.json. In format 1, task algorithm had another distribution, without a name.
FORMAT = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class RunResult:
    """The scores of a run, and the budget that it really had."""

    recipe: str
    seed: int
    status: Literal["finished", "diverged"]
    num_updates: int
    num_tokens: int
    num_parameters: int
    wall_seconds: float
    device: str
    num_rollbacks: int
    best_update: int | None
    """The update whose weights were scored: the best on the validation data."""
    valid: dict[str, Any] | None
    test: dict[str, Any] | None
    outcome: Literal["learnt", "did not learn", "diverged"] | None = None
    """Whether the test score is better than that of the best constant guess; None in old files."""


class RunFolder:
    """The folder of one run."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.config = self.path / "config.json"
        self.metrics = self.path / "metrics.jsonl"
        self.timing = self.path / "timing.jsonl"
        self.tensorboard = self.path / "tensorboard"
        self.environment = self.path / "environment.json"
        self.result = self.path / "result.json"
        self.tokeniser = self.path / "tokeniser"
        self.checkpoints = CheckpointFolder(self.path / "checkpoints")
        self.weights = self.path / WEIGHTS
        self.packing = self.path / "packing.json"
        self.starting = self.path / ".starting"
        """There while the other files of a new run are written."""

    @property
    def is_unbegun(self) -> bool:
        """Whether a run can start here: in no folder, an empty one, or where a start was killed."""
        if not self.path.exists():
            return True
        if not self.path.is_dir() or self.config.exists():
            return False
        return self.starting.exists() or not any(self.path.iterdir())

    def require_unbegun(self) -> None:
        """Refuse a folder that somebody else uses."""
        if not self.is_unbegun:
            raise input_error(
                "a new run needs a folder that is new or empty",
                self.path,
                "name another with --output, or resume the run in it with --resume",
            )

    def require_same(self, recipe: Recipe, init: str | None) -> None:
        """Refuse to resume a run that has another recipe, or started from another run."""
        config, now = self.read_config(), recipe.to_plain()
        # Whoever names the same recipe names its code, too.
        before = self.recipe(trust_code=config["recipe"] == now).to_plain()
        before["init"] = config.get("init", {}).get("run")
        changes = list(differences(before, now | {"init": init}))
        if changes:
            raise input_error(
                f"a run is resumed with its own recipe, and {self.path} holds another",
                f"{', '.join(changes[:2])}{', ...' if changes[2:] else ''}",
                "name another folder with --output",
            )

    @contextlib.contextmanager
    def started(
        self,
        recipe: Recipe,
        tokeniser: Tokeniser | None = None,
        **facts: Any,  # noqa: ANN401
    ) -> Iterator[None]:
        """A new run, whose folder stays locked; facts go to config.json.

        The tokeniser of a language model is saved with it, so that it works without its corpus.
        """
        # The process that torchrun numbers 0 starts the run.
        if not is_first_process():
            yield
            return
        with self._writable():
            make_folder(self.path)
        with self.locked():
            # Two runs that were given one empty folder must not both find it empty, so the lock
            # comes before the look inside.
            self.require_unbegun()
            with self._writable():
                self.starting.touch()
                # Before the others: without it, the folder would belong to somebody else.
                sync(self.path)
                self.checkpoints.path.mkdir(exist_ok=True)
                write_json(self.environment, environment())
                if tokeniser is not None:
                    save_folder(self.tokeniser, tokeniser.save)
                # Last: a folder with a config.json is a run, one without it is not.
                write_json(self.config, {"format": FORMAT, "recipe": recipe.to_plain(), **facts})
                self.starting.unlink()
            yield

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other runs out of this folder."""
        if not is_first_process():
            yield
            return
        with locked(self.path):
            yield

    def clear(self) -> None:
        """Delete what killed processes have left unfinished."""
        self.checkpoints.abandon()
        for path in self.path.glob(f".*{PARTIAL}"):
            path.unlink()

    @contextlib.contextmanager
    def _writable(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise input_error(
                "a run folder must be writable",
                f"{self.path} ({error.strerror})",
                "name another with --output",
            ) from error

    @contextlib.contextmanager
    def full_disk_reported(self) -> Iterator[None]:
        """Report a full disk in one line, and leave nothing half-written."""
        try:
            yield
        except OSError as error:
            if error.errno not in FULL_DISK:
                raise
            # The half-written checkpoint takes the space that is missing.
            self.checkpoints.abandon()
            names = self.checkpoints.names()
            remedy = "free some space and train again"
            if names:
                remedy = (
                    f"the checkpoint of update {names[-1].update:,} is whole: free some space and "
                    f"resume with: {self.resume_command}"
                )
            raise OSError(
                f"a run needs space on its disk, got none at {self.path} ({error.strerror}); "
                f"{remedy}"
            ) from error

    def read_config(self) -> dict[str, Any]:
        """The content of config.json in the present format; no code that it names is executed."""
        try:
            config: dict[str, Any] = read_json(self.config)
        except OSError as error:
            raise input_error(
                "a run folder holds a config.json that `staircase train` wrote",
                self.path,
                "check the path",
            ) from error
        except ValueError as error:
            raise input_error(
                "a run's config.json must be as it was written",
                f"{self.config}, which is damaged",
                "restore it from a copy",
            ) from error
        if not isinstance(config, dict) or config.get("format") not in (1, FORMAT):
            raise input_error(
                f"a run folder's config.json has format {FORMAT} or 1",
                f"{self.path} without it",
                "use the version of staircase-attention that wrote it",
            )
        task = config["recipe"].get("task", {})
        if config["format"] == 1 and task.get("reference") == "algorithm":
            task["options"] = {"distribution": "redraw", **task.get("options", {})}
        return config

    def recipe(self, *, trust_code: bool = False) -> Recipe:
        """The recipe of the run. Code that it names must be trusted before it is executed."""
        plain = self.read_config()["recipe"]
        if not trust_code:
            require_trusted_code(plain, self.path)
        return Recipe.from_plain(plain)

    @property
    def num_threads(self) -> int | None:
        """With how many threads the run began; None before that."""
        with contextlib.suppress(OSError, ValueError, KeyError):
            return int(read_json(self.environment)["num_threads"])
        return None

    def extend(self, recipe: Recipe) -> None:
        """Give the run the budget of this recipe."""
        config = self.read_config()
        # In this order, a kill in between leaves a run that is scored again.
        self.result.unlink(missing_ok=True)
        write_json(self.config, config | {"format": FORMAT, "recipe": recipe.to_plain()})

    def read_result(self) -> RunResult:
        """The result of a finished run."""
        try:
            result = RunResult(**read_json(self.result))
            for score in (result.valid, result.test):
                # Otherwise text in place of numbers would show up only where it is printed.
                if score is not None:
                    math.isnan(score["loss"] + score["error"])
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise input_error(
                "a run's result.json must be as the trainer wrote it",
                f"{self.result} ({type(error).__name__})",
                "delete it, and `staircase resume` scores the run again",
            ) from error
        return result

    @property
    def resume_command(self) -> str:
        """The shell command that resumes the run."""
        return f"staircase resume {shlex.quote(str(self.path))}"

    @property
    def is_finished(self) -> bool:
        """Whether the run has a result."""
        return self.result.exists()

    @property
    def is_packed(self) -> bool:
        """Whether the folder holds only what is needed to use the model."""
        return self.packing.exists()


class MetricsLog:
    """The metrics of a run: one JSON line at a time, and the same for TensorBoard.

    `metrics.jsonl` holds nothing that depends on the clock, so that a run that was killed and
    resumed ends with the same bytes as one that was not; times go to `timing.jsonl`.
    """

    def __init__(self, folder: RunFolder, *, num_bytes: int, update: int) -> None:
        """Continue the metrics after their first `num_bytes`, which the checkpoint counted."""
        self._folder = folder
        is_there = folder.metrics.exists()
        length = folder.metrics.stat().st_size if is_there else 0
        # Metrics reach the disk before the checkpoint, so something was lost. Empty is on purpose.
        if length < num_bytes and (length or not is_there):
            raise input_error(
                f"a run's metrics must have the {num_bytes} bytes that its checkpoint counted",
                f"{folder.metrics} with {length}",
                f"restore them, or resume without them after: truncate -s 0 {folder.metrics}",
            )
        with folder.metrics.open("ab") as file:
            file.truncate(min(num_bytes, file.tell()))
        self._file = folder.metrics.open("ab")
        self._timing = folder.timing.open("a")
        # A checkpoint that counts the metrics must not outlive their name.
        sync(folder.path)
        # TensorBoard hides the steps that will be logged again.
        self._board = SummaryWriter(str(folder.tensorboard), purge_step=update + 1)

    @property
    def num_bytes(self) -> int:
        """Length of the metrics so far: where to cut when resuming from here."""
        return self._folder.metrics.stat().st_size

    def write(self, kind: str, update: int, **values: Any) -> None:  # noqa: ANN401
        """Log some values of one update."""
        plain = {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in values.items()
        }
        line = json.dumps({"kind": kind, "update": update, **plain})
        self._file.write(f"{line}\n".encode())
        self._file.flush()
        # On disk before any checkpoint that counts these bytes: a resumed run can always cut here.
        os.fsync(self._file.fileno())
        for name, value in values.items():
            if isinstance(value, (int, float)):
                self._board.add_scalar(f"{kind}/{name}", value, update)

    def write_timing(self, update: int, **values: float) -> None:
        """Log values that depend on the clock."""
        self._timing.write(json.dumps({"update": update, **values}) + "\n")
        self._timing.flush()
        for name, value in values.items():
            self._board.add_scalar(f"timing/{name}", value, update)

    def close(self) -> None:
        """Write what is left."""
        self._file.close()
        self._timing.close()
        self._board.close()


def environment() -> dict[str, Any]:
    """What the run ran on, as far as a result can depend on it."""
    packages = ("staircase-attention", "torch", "numpy", "safetensors", "triton")
    # The kernel's build is left out, since it may name a machine.
    library = "".join(platform.libc_ver())
    system = f"{platform.system()} {platform.machine()}" + (f", {library}" if library else "")
    return {
        "python": platform.python_version(),
        "platform": system,
        "packages": {name: version for name in packages if (version := _version(name))},
        "device": device_name(),
        "num_threads": torch.get_num_threads(),
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
    }


def device_name() -> str:
    """The GPU, or the processor."""
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    count = torch.get_num_threads()
    return f"{platform.machine()} CPU, {count} thread{'s' if count > 1 else ''}"


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
