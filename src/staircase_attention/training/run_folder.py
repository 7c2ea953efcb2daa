"""A run on disk: which file is where."""

import contextlib
import fcntl
import os
import platform
import shlex
import shutil
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from staircase_attention.data import Tokeniser
from staircase_attention.files import PARTIAL, read_json, write_json
from staircase_attention.training.checkpoint import WEIGHTS, CheckpointFolder
from staircase_attention.training.processes import is_first_process
from staircase_attention.training.recipe import Recipe
from staircase_attention.training.trust import require_trusted_code

FORMAT = 1
"""Counted up when the layout of run folders changes."""


class RunInUseError(ValueError):
    """A run that another process is at work on."""


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
        self._held: int | None = None
        """The folder itself, open, while this process works in it."""

    def create(self, recipe: Recipe, tokeniser: Tokeniser | None = None) -> None:
        """Begin a run here, in a folder that is new or empty.

        A model of text takes its tokeniser along, so that it can speak wherever it is taken.
        """
        if not self.is_unbegun:
            raise ValueError(
                f"a new run needs a folder that is new or empty, got {self.path}; "
                "name another with --output, or use `staircase resume` to go on with it"
            )
        with self._writable():
            self.checkpoints.path.mkdir(parents=True, exist_ok=True)
            write_json(self.environment, environment())
            if tokeniser is not None:
                shutil.rmtree(self.tokeniser, ignore_errors=True)
                self.tokeniser.mkdir()
                tokeniser.save(self.tokeniser)
            write_json(self.config, {"format": FORMAT, "recipe": recipe.to_plain()})

    @property
    def is_unbegun(self) -> bool:
        """Whether nothing is here, or only what a run left that was killed before it began."""
        if not self.path.exists():
            return True
        if not self.path.is_dir():
            return False
        left = [entry for entry in self.path.iterdir() if not self._is_partial(entry)]
        first_steps = {self.checkpoints.path, self.environment, self.tokeniser}
        return {*left} <= first_steps and all(map(self._is_ours, left))

    def _is_partial(self, entry: Path) -> bool:
        """Whether it is what a kill left of a file of a run."""
        whole = (self.environment, self.config)
        is_named = any(entry.name.startswith(f".{file.name}.") for file in whole)
        return is_named and entry.name.endswith(PARTIAL)

    def _is_ours(self, entry: Path) -> bool:
        """Whether one of a run's first steps left this, and not somebody with the same word."""
        if entry == self.checkpoints.path:
            return entry.is_dir() and not any(entry.iterdir())
        # It is written before there is a tokeniser.
        with contextlib.suppress(OSError, ValueError, TypeError):
            return {*read_json(self.environment)} == {*environment()}
        return False

    @contextlib.contextmanager
    def begun(self, recipe: Recipe, tokeniser: Tokeniser | None = None) -> Iterator[None]:
        """A new run, in a folder that is locked before anything is looked at or written.

        One that ends before its first checkpoint leaves nothing behind.
        """
        # The process that torchrun numbers 0 begins; the others meet it at the first save.
        if not is_first_process():
            yield
            return
        is_new = not self.path.exists()
        with self._writable(), contextlib.suppress(FileExistsError):
            self.path.mkdir(parents=True)
        with self.locked():
            self.create(recipe, tokeniser)
            try:
                yield
            except BaseException:
                if not self.is_another and not self.checkpoints.names():
                    self._clear(is_new=is_new)
                raise

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """While this lasts, no other run can work in this folder."""
        if not is_first_process():
            yield
            return
        # The folder itself is locked, so that no file is left behind.
        folder = os.open(self.path, os.O_RDONLY)
        try:
            self._lock(folder)
            self._held = folder
            yield
        finally:
            self._held = None
            os.close(folder)

    @property
    def is_another(self) -> bool:
        """Whether what is at the path is no longer what was locked."""
        if self._held is None:
            return False
        try:
            return not os.path.samestat(os.fstat(self._held), self.path.stat())
        except OSError:
            return True

    def require_own(self) -> None:
        """Stop before anything is written to, or taken from, the folder of another run."""
        if self.is_another:
            raise ValueError(
                f"a run's folder must stay where it is while the run is under way, got {self.path},"
                " which was moved, removed or replaced; if it was moved, go on with `staircase "
                "resume` and its new place, else begin anew in another folder"
            )

    def _clear(self, *, is_new: bool) -> None:
        """Take a run away again; the folder too, if it was made for it and is empty then."""
        for entry in (self.checkpoints.path, self.tokeniser, self.tensorboard):
            shutil.rmtree(entry, ignore_errors=True)
        for entry in (self.config, self.environment, self.metrics, self.timing, self.result):
            entry.unlink(missing_ok=True)
        for entry in filter(self._is_partial, list(self.path.iterdir())):
            entry.unlink()
        if is_new:
            with contextlib.suppress(OSError):
                self.path.rmdir()

    @contextlib.contextmanager
    def _writable(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise ValueError(
                f"a run folder must be writable, got {self.path} ({error.strerror}); "
                "name another with --output"
            ) from error

    def _lock(self, folder: int) -> None:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunInUseError(
                f"a run folder is worked in by one run at a time, got {self.path}, where one is "
                "under way; wait for it, or name another folder"
            ) from None

    def recipe(self, *, trust_code: bool = False) -> Recipe:
        """The recipe of the run, whose code must be trusted before any of it is executed."""
        plain = self.plain_recipe()
        if not trust_code:
            require_trusted_code(plain, self.path)
        return Recipe.from_plain(plain)

    def plain_recipe(self) -> dict[str, Any]:
        """The recipe of the run as plain data, from which nothing is built."""
        try:
            config = read_json(self.config)
        except OSError as error:
            raise ValueError(
                f"a run folder holds a config.json that `staircase train` wrote, got {self.path}; "
                "check the path"
            ) from error
        except ValueError as error:
            raise ValueError(
                f"a run's config.json must be as it was written, got {self.config}, which is "
                "damaged; put it back from a copy"
            ) from error
        if not isinstance(config, dict) or config.get("format") != FORMAT:
            raise ValueError(
                f"a run folder's config.json has format {FORMAT}, got {self.path} without it; "
                "use the version of staircase-attention that wrote it"
            )
        plain: dict[str, Any] = config["recipe"]
        return plain

    @property
    def resume_command(self) -> str:
        """By which a person goes on with the run; it can be pasted."""
        return f"staircase resume {shlex.quote(str(self.path))}"

    @property
    def is_finished(self) -> bool:
        """Whether the run has come to its end."""
        return self.result.exists()

    @property
    def is_packed(self) -> bool:
        """Whether only what is needed to use the model is here."""
        return self.packing.exists()


def environment() -> dict[str, Any]:
    """What the run ran on, as far as a result can depend on it."""
    packages = ("staircase-attention", "torch", "numpy", "safetensors", "triton")
    return {
        "python": platform.python_version(),
        "platform": _platform(),
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


def _platform() -> str:
    """System, processor and C library; not the kernel's build, which may name a machine."""
    library = "".join(platform.libc_ver())
    return f"{platform.system()} {platform.machine()}" + (f", {library}" if library else "")


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
