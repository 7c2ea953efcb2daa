"""Checkpoints: folders that are written whole or not at all, and are checked when read."""

import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from staircase_attention.files import checksum, sync_folder

MANIFEST = "manifest.json"
TRAINER = "trainer.json"
WEIGHTS = "weights.safetensors"
NAME = re.compile(r"update-(\d+)(?:-rollback-(\d+))?")


class DamagedCheckpointError(ValueError):
    """A checkpoint that is not as it was written."""


@dataclass(frozen=True, order=True, slots=True)
class CheckpointName:
    """Checkpoints in the order in which a run wrote them."""

    num_rollbacks: int
    update: int

    def __str__(self) -> str:
        ending = f"-rollback-{self.num_rollbacks}" if self.num_rollbacks else ""
        return f"update-{self.update:08d}{ending}"

    @classmethod
    def parse(cls, text: str) -> "CheckpointName | None":
        """The name that a folder has, if it is a checkpoint's."""
        match = NAME.fullmatch(text)
        if match is None:
            return None
        return cls(num_rollbacks=int(match[2] or 0), update=int(match[1]))


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What a checkpoint holds: plain data, and tensors by file and name."""

    trainer: dict[str, Any]
    tensors: dict[str, dict[str, Tensor]]


class CheckpointFolder:
    """The checkpoints of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def names(self) -> list[CheckpointName]:
        """Those that are there, in the order in which they were written."""
        if not self.path.is_dir():
            return []
        found = (CheckpointName.parse(entry.name) for entry in self.path.iterdir())
        return sorted(name for name in found if name is not None)

    def write_part(self, name: CheckpointName, file: str, tensors: Mapping[str, Tensor]) -> None:
        """Write one file of a checkpoint that is not there yet."""
        scratch = self._scratch(name)
        scratch.mkdir(parents=True, exist_ok=True)
        _write(scratch / file, save(dict(tensors)))

    def finish(self, name: CheckpointName, trainer: Mapping[str, Any]) -> None:
        """Let a checkpoint appear, after all its parts have been written."""
        scratch = self._scratch(name)
        _write(scratch / TRAINER, json.dumps(trainer).encode())
        sums = {entry.name: checksum(entry.read_bytes()) for entry in sorted(scratch.iterdir())}
        _write(scratch / MANIFEST, json.dumps(sums).encode())
        sync_folder(scratch)
        target, old = self.path / str(name), self.path / f".replaced-{name}"
        if target.exists():
            target.rename(old)
        scratch.rename(target)
        sync_folder(self.path)
        shutil.rmtree(old, ignore_errors=True)

    def abandon(self) -> None:
        """Clear away whatever was not finished."""
        for pattern in (".partial-*", ".replaced-*"):
            for scratch in self.path.glob(pattern):
                shutil.rmtree(scratch, ignore_errors=True)

    def read(self, name: CheckpointName) -> Checkpoint:
        """A checkpoint, if it is as it was written."""
        try:
            contents = dict(_checked_files(self.path / str(name)))
            trainer = json.loads(contents[TRAINER])
            for rank in range(trainer["num_processes"]):
                if process_file(rank) not in contents:
                    raise DamagedCheckpointError(f"{name} lacks {process_file(rank)}")
            tensors = {
                file: load(content)
                for file, content in contents.items()
                if file.endswith(".safetensors")
            }
        except DamagedCheckpointError:
            raise
        except (OSError, ValueError, KeyError, TypeError, AttributeError, SafetensorError) as error:
            raise DamagedCheckpointError(f"{name} cannot be read ({error!r})") from error
        return Checkpoint(trainer=trainer, tensors=tensors)

    def read_trainer(self, name: CheckpointName) -> dict[str, Any]:
        """The plain data of a checkpoint alone."""
        try:
            plain: dict[str, Any] = json.loads((self.path / str(name) / TRAINER).read_bytes())
        except (OSError, ValueError) as error:
            raise DamagedCheckpointError(f"{name} cannot be read ({error})") from error
        return plain

    def notes(self) -> dict[CheckpointName, dict[str, Any]]:
        """The plain data of all checkpoints whose plain data can be read, in order."""
        found = {}
        for name in self.names():
            try:
                found[name] = self.read_trainer(name)
            except DamagedCheckpointError:
                continue
        return found

    def remove(self, name: CheckpointName) -> None:
        """Delete a checkpoint."""
        shutil.rmtree(self.path / str(name))

    def set_aside(self, name: CheckpointName) -> None:
        """Put a damaged checkpoint out of the way, for a person to look at."""
        aside = self.path / f"damaged-{name}"
        if aside.exists():
            shutil.rmtree(aside)
        (self.path / str(name)).rename(aside)

    def _scratch(self, name: CheckpointName) -> Path:
        return self.path / f".partial-{name}"


def process_file(rank: int) -> str:
    """The file of what only one process has: its lanes' states and random generators."""
    return f"process-{rank}.safetensors"


def _checked_files(folder: Path) -> Iterator[tuple[str, bytes]]:
    sums = json.loads((folder / MANIFEST).read_bytes())
    for file, expected in sums.items():
        content = (folder / file).read_bytes()
        if checksum(content) != expected:
            raise DamagedCheckpointError(f"{folder.name}/{file} is not as it was written")
        yield file, content


def _write(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
