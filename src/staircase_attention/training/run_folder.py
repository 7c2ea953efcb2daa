"""A run on disk: its files, its lock, its metrics, its result."""

import contextlib
import hashlib
import json
import math
import os
import platform
import shlex
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

import torch
from torch.utils.tensorboard import SummaryWriter

from staircase_attention import files
from staircase_attention.checks import input_error
from staircase_attention.data import Tokeniser
from staircase_attention.display import counted
from staircase_attention.plain import differences, from_plain
from staircase_attention.references import require_trusted_code
from staircase_attention.training.checkpoint import WEIGHTS, CheckpointFolder
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

    @property
    def scores(self) -> dict[str, dict[str, Any]]:
        """The scores that there are, by split."""
        found = {"valid": self.valid, "test": self.test}
        return {split: score for split, score in found.items() if score is not None}


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
            remedy = "name another with --output, or resume the run in it with --resume"
            raise input_error("a new run needs a folder that is new or empty", self.path, remedy)

    def require_same(self, recipe: Recipe, init: str | None) -> None:
        """Refuse to resume a run that has another recipe, or started from another run."""
        config, now = self.read_config(), recipe.to_plain()
        # Whoever names the same recipe names its code, too.
        before = self.recipe(trust_code=config["recipe"] == now).to_plain()
        # How processes share the work changes no result, so that each resumption may choose it.
        before["training"]["parallel"] = now["training"]["parallel"]
        before["init"] = config.get("init", {}).get("run")
        changes = list(differences(before, now | {"init": init}))
        if changes:
            rule = f"a run is resumed with its own recipe, and {self.path} holds another"
            received = f"{', '.join(changes[:2])}{', ...' if changes[2:] else ''}"
            remedy = "name another with --output; for more updates, use resume --updates"
            raise input_error(rule, received, remedy)

    @contextlib.contextmanager
    def started(
        self,
        recipe: Recipe,
        tokeniser: Tokeniser | None = None,
        device: torch.device | None = None,
        **facts: Any,  # noqa: ANN401
    ) -> Iterator[None]:
        """A new run, whose folder stays locked; facts go to config.json.

        The tokeniser of a language model is saved with it, so that it works without its corpus.
        """
        if not is_first_process():
            yield
            return
        rule = "a run folder must be writable"
        with files.writing(rule, self.path, "name another with --output"):
            files.make_folder(self.path)
        with self.locked():
            # Two runs that were given one empty folder must not both find it empty, so the lock
            # comes before the look inside.
            self.require_unbegun()
            with files.writing(rule, self.path, "name another with --output"):
                self.starting.touch()
                # Before the others: without it, the folder would belong to somebody else.
                files.sync(self.path)
                self.checkpoints.path.mkdir(exist_ok=True)
                files.write_json(self.path / files.CHECKSUMS, {})
                for path in (self.tokeniser, *self.path.glob(f".*{files.PARTIAL}")):
                    shutil.rmtree(path, ignore_errors=True)
                if tokeniser is not None:
                    files.save_folder(self.tokeniser, tokeniser.save)
                config = {"format": FORMAT, "recipe": recipe.to_plain(), **facts}
                # Last: a folder with a config.json is a run, one without it is not.
                contents = {self.environment.name: environment(device), self.config.name: config}
                self.write(contents, also=self.tokeniser_files())
                self.starting.unlink()
            yield

    def locked(self) -> contextlib.AbstractContextManager[object]:
        """Keep other runs out of this folder."""
        # The process that torchrun numbers 0 does this for all.
        return files.locked(self.path) if is_first_process() else contextlib.nullcontext()

    def clear_full_disk(self) -> str:
        """Leave nothing half-written on a full disk; what to do then."""
        # The half-written checkpoint takes the space that is missing.
        self.checkpoints.abandon()
        names = self.checkpoints.names()
        if not names:
            return "free some space and train again"
        return (
            f"the checkpoint of update {names[-1].update:,} is whole: free some space and "
            f"resume with: {self.resume_command}"
        )

    def read_config(self) -> dict[str, Any]:
        """The content of config.json in the present format; no code that it names is executed."""
        if not self.config.exists():
            rule = "a run folder holds a config.json that `staircase train` wrote"
            raise input_error(rule, self.path, "check the path")
        remedy = "restore it from a copy, or name a run folder and no export"
        with files.as_written("a run's config.json", self.config, remedy):
            content = files.read_summed(self.path, self.config.name)
            config: dict[str, Any] = files.parse_json(content)
            version, task = config["format"], config["recipe"]["task"]
            if version == 1 and task.get("reference") == "algorithm":
                task["options"] = {"distribution": "redraw", **task.get("options", {})}
        if version not in (1, FORMAT):
            rule = f"a run folder's config.json has format {FORMAT} or 1"
            remedy = "use the version of staircase-attention that wrote it"
            raise input_error(rule, f"{self.path} with {version}", remedy)
        return config

    def recipe(self, *, trust_code: bool = False) -> Recipe:
        """The recipe of the run. Code that it names must be trusted before it is executed."""
        plain = self.read_config()["recipe"]
        if not trust_code:
            require_trusted_code(plain, self.path)
        return Recipe.from_plain(plain)

    def read_environment(self) -> dict[str, Any]:
        """What the run began on, as `environment` gave it; nothing before that."""
        if not self.environment.exists():
            return {}
        with files.as_written("a run's environment.json", self.environment, "delete it"):
            plain = files.parse_json(files.read_summed(self.path, self.environment.name))
            # Otherwise text in its place would show up only where threads are set.
            int(plain.get("num_threads", 1))
            return dict(plain)

    def write(self, contents: Mapping[str, Any], also: Iterable[str] = ()) -> None:
        """Write plain data to files by name, and record their checksums and those of others."""
        encoded = {name: files.json_bytes(plain) for name, plain in contents.items()}
        files.write_summed(self.path, encoded, also)

    def tokeniser_files(self) -> list[str]:
        """The names of the tokeniser's files, here or recorded; none without one."""
        prefix, recorded = f"{self.tokeniser.name}/", files.read_sums(self.path) or {}
        names = {name for name in recorded if name.startswith(prefix)}
        return sorted(names | {f"{prefix}{file.name}" for file in self.tokeniser.glob("*")})

    def check_tokeniser(self) -> list[str]:
        """Refuse a tokeniser that is not as it was written; the checksums of its files."""
        with files.as_written("a run's tokeniser", self.tokeniser, "restore it from a copy"):
            contents = {name: files.read_summed(self.path, name) for name in self.tokeniser_files()}
        return [f"{name} {files.checksum(content)}" for name, content in contents.items()]

    def read_result(self) -> RunResult:
        """The result of a finished run."""
        remedy = "delete it, and `staircase resume` scores the run again"
        with files.as_written("a run's result.json", self.result, remedy):
            plain = files.parse_json(files.read_summed(self.path, self.result.name))
            result = from_plain(RunResult, plain, "result")
            for score in result.scores.values():
                # Otherwise text in place of numbers would show up only where it is printed.
                math.isnan(score["loss"] + score["error"])
        return result

    def read_metrics(self) -> bytes:
        """The metrics so far, verified: all of a finished run, else those before a checkpoint."""
        # A folder without checksums may lack them.
        if self.is_finished and (self.metrics.exists() or files.read_sums(self.path)):
            return files.read_summed(self.path, self.metrics.name, most=None)
        # Checkpoints first: what a run saves meanwhile counts metrics that come after these.
        notes = list(self.checkpoints.notes().values())
        content = files.read_file(self.metrics, most=None) if self.metrics.exists() else b""
        for note in notes[-1:]:
            check_metrics(self.metrics, content, note["metrics_bytes"], note.get("metrics_sha256"))
        return content

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

    def __init__(
        self, folder: RunFolder, *, num_bytes: int, update: int, sha256: str | None = None
    ) -> None:
        """Continue the metrics after their first `num_bytes`, which the checkpoint counted."""
        self._folder = folder
        is_there, content = folder.metrics.exists(), b""
        if is_there:
            content = files.read_file(folder.metrics, most=None, follows_links=False)
        check_metrics(folder.metrics, content if is_there else None, num_bytes, sha256)
        self._sum = hashlib.sha256(content[:num_bytes])
        self._timing = files.appending(folder.timing)
        self._file = files.appending(folder.metrics)
        self._file.truncate(min(num_bytes, self._file.tell()))
        # A checkpoint that counts the metrics must not outlive their name.
        files.sync(folder.path)
        # TensorBoard hides the steps that will be logged again.
        self._board = SummaryWriter(str(folder.tensorboard), purge_step=update + 1)

    @property
    def extent(self) -> dict[str, Any]:
        """Length and checksum of the metrics so far, which are cut here when resuming from here."""
        num_bytes = self._folder.metrics.stat().st_size
        return {"metrics_bytes": num_bytes, "metrics_sha256": self._sum.hexdigest()}

    def write(self, kind: str, update: int, **values: Any) -> None:  # noqa: ANN401
        """Log some values of one update."""
        plain = {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in values.items()
        }
        line = f"{json.dumps({'kind': kind, 'update': update, **plain})}\n".encode()
        self._file.write(line)
        self._sum.update(line)
        self._file.flush()
        # On disk before any checkpoint that counts these bytes: a resumed run can always cut here.
        os.fsync(self._file.fileno())
        for name, value in values.items():
            if isinstance(value, (int, float)):
                self._board.add_scalar(f"{kind}/{name}", value, update)

    def write_timing(self, update: int, tokens_per_second: float, wall_seconds: float) -> None:
        """Log values that depend on the clock."""
        values = {"tokens_per_second": tokens_per_second, "wall_seconds": wall_seconds}
        self._timing.write(f"{json.dumps({'update': update, **values})}\n".encode())
        self._timing.flush()
        for name, value in values.items():
            self._board.add_scalar(f"timing/{name}", value, update)

    def close(self) -> None:
        """Write what is left."""
        self._file.close()
        self._timing.close()
        self._board.close()


def check_metrics(path: Path, content: bytes | None, num_bytes: int, sha256: str | None) -> None:
    """Refuse metrics that do not begin with what a checkpoint counted. Empty is on purpose."""
    # They reach the disk before the checkpoint, so something was lost or changed.
    found = (content or b"")[:num_bytes]
    if content != b"" and (len(found) < num_bytes or sha256 not in (None, files.checksum(found))):
        rule = f"a run's metrics must have the {num_bytes} bytes that its checkpoint counted"
        received = f"{path} with {len(found)}" + (" others" if len(found) == num_bytes else "")
        remedy = f"restore them, or resume without them after: truncate -s 0 {path}"
        raise input_error(rule, received, remedy)


def environment(device: torch.device | None = None) -> dict[str, Any]:
    """What a run on this device ran on, as far as a result can depend on it."""
    packages = ("staircase-attention", "torch", "numpy", "safetensors", "triton")
    # The kernel's build is left out, since it may name a machine.
    library = "".join(platform.libc_ver())
    system = f"{platform.system()} {platform.machine()}" + (f", {library}" if library else "")
    versions = {}
    for name in packages:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return {
        "python": platform.python_version(),
        "platform": system,
        "packages": versions,
        "device": device_name(device),
        "num_threads": torch.get_num_threads(),
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
    }


def device_name(device: torch.device | None) -> str:
    """The GPU, or the processor; without a device, the GPU if there is one."""
    if torch.cuda.is_available() if device is None else device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{platform.machine()} CPU, {counted(torch.get_num_threads(), 'threads')}"
