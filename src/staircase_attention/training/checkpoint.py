"""Checkpoints: folders that appear whole or not at all, and are verified when read.

A checkpoint holds the weights, the optimiser's state, each process's lane states and random
generators, and plain data with the run's progress; a manifest has the SHA-256 of every file.
"""

import contextlib
import glob
import json
import math
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from staircase_attention import files
from staircase_attention.checks import one_line
from staircase_attention.models import LSTMState, State, passes_of, put_together, take_apart
from staircase_attention.plain import from_plain
from staircase_attention.tasks import lanes_of_process
from staircase_attention.training.dataset import Position
from staircase_attention.training.learner import Carried, Learner
from staircase_attention.training.processes import Processes
from staircase_attention.training.recipe import DivergenceConfig

MANIFEST = "manifest.json"
TRAINER = "trainer.json"
WEIGHTS = "weights.safetensors"
OPTIMIZER = "optimizer.safetensors"
# Prefix of the random generators' states among a process's tensors.
RANDOM = "random"
# Name of the lane states' headers there: JSON.
HEADERS = "headers"
# What a checkpoint that is not as it was written raises; the last two, JSON of another shape.
DAMAGE = (OSError, ValueError, LookupError, SafetensorError, TypeError, AttributeError)
# Of a checkpoint's folder: its update, and the rollbacks before it.
NAME = re.compile(r"update-(\d+)(?:-rollback-(\d+))?")


class DamagedCheckpointError(ValueError):
    """A checkpoint that is not as it was written."""


@dataclass(frozen=True, order=True, slots=True)
class CheckpointName:
    """Checkpoints in the order in which a run wrote them."""

    # In this order: what a run writes after a rollback is later than all before it,
    # though it is of an earlier update.
    num_rollbacks: int
    update: int

    def __str__(self) -> str:
        ending = f"-rollback-{self.num_rollbacks}" if self.num_rollbacks else ""
        return f"update-{self.update:08d}{ending}"


@dataclass(slots=True)
class LossWatch:
    """Detects divergence: a loss that jumps and stays high, or gradients that are not finite."""

    smoothed: float = math.nan
    num_seen: int = 0
    """Losses that went into the smoothed one."""
    lowest: float = math.inf
    """The lowest smoothed loss."""
    num_high: int = 0
    """Consecutive updates with the smoothed loss far above its lowest."""
    num_skipped: int = 0
    """Consecutive updates skipped because their gradients were not finite."""

    def see(self, loss: float, config: DivergenceConfig, uniform: float = math.inf) -> None:
        """Add the loss of one update; `uniform` is that of a uniform guess.

        The first losses are averaged. Until there are as many as the smoothing spans, their mean is
        no reference: with lanes in step, one update has the easy starts of all episodes. Until then
        a loss is high if it is far above a uniform guess, which a new model is close to.
        """
        self.num_seen += 1
        # 1 / n averages the first losses, then the smoothing is exponential.
        share = max(1 - config.smoothing, 1 / self.num_seen)
        past = loss if math.isnan(self.smoothed) else self.smoothed
        self.smoothed = (1 - share) * past + share * loss
        if self.num_seen * (1 - config.smoothing) >= 1:
            self.lowest = min(self.lowest, self.smoothed)
        reference = max(min(self.lowest, uniform), config.loss_floor)
        is_high = self.smoothed > config.jump_factor * reference
        self.num_high = self.num_high + 1 if is_high else 0

    def forget(self) -> None:
        """Restart the smoothing when the data changes, unless the loss is high.

        A diverging run must not be measured by the losses that it diverged to.
        """
        if self.num_high == 0:
            self.smoothed, self.num_seen, self.lowest = math.nan, 0, math.inf

    @property
    def is_healthy(self) -> bool:
        """Whether a checkpoint taken now is one to roll back to."""
        return self.num_high == 0 and self.num_skipped == 0

    def has_diverged(self, config: DivergenceConfig) -> bool:
        """Whether the run has been unhealthy for long enough to act."""
        return self.num_high >= config.patience or self.num_skipped >= config.max_skips


@dataclass(slots=True)
class TrainingProgress:
    """Everything of a run that is plain data and changes from update to update."""

    position: Position
    update: int = 0
    """Updates done."""
    num_tokens: int = 0
    wall_seconds: float = 0.0
    num_rollbacks: int = 0
    rate_scale: float = 1.0
    """Factor of the learning rate, lowered by rollbacks."""
    watch: LossWatch = field(default_factory=LossWatch)
    best_update: int | None = None
    best_rollbacks: int = 0
    best_rank: tuple[float, ...] = (math.inf,)
    """The best validation score, as the dataset ranks scores."""
    since_log: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])
    """Loss, wrong answers and answers since the last line of metrics."""

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any], kind: type[Position]) -> "TrainingProgress":
        """The progress that `asdict` turned into plain data, with a position of this kind."""
        # Older versions wrote null for what has not been seen yet, which is the default.
        known, watch = (
            {name: value for name, value in part.items() if value is not None}
            for part in (plain, plain["watch"])
        )
        position = from_plain(kind, plain["position"], "position")
        known |= {"position": position, "watch": watch}
        progress = from_plain(cls, known, "progress")
        counts = [progress.update, progress.num_tokens, progress.num_rollbacks]
        counts += [progress.watch.num_seen, progress.watch.num_high, progress.watch.num_skipped]
        for place in asdict(position).values():
            counts += place if isinstance(place, tuple) else [place]
        if min(counts) < 0 or not 0 <= progress.rate_scale <= 1:
            raise ValueError("its progress is out of range")
        return progress

    @property
    def name(self) -> CheckpointName:
        """The name of a checkpoint taken now."""
        return CheckpointName(num_rollbacks=self.num_rollbacks, update=self.update)

    @property
    def best(self) -> CheckpointName | None:
        """The checkpoint with the best validation score."""
        if self.best_update is None:
            return None
        return CheckpointName(num_rollbacks=self.best_rollbacks, update=self.best_update)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What a checkpoint holds: plain data, and tensors by file and name."""

    trainer: dict[str, Any]
    tensors: dict[str, dict[str, Tensor]]

    def restore(self, learner: Learner) -> None:
        """Put a learner where the checkpoint was taken."""
        learner.load_weights(self.tensors[WEIGHTS])
        learner.optimizer.load(self.tensors[OPTIMIZER])
        rank, num_parts = learner.processes.rank, len(learner.states)
        parts = [self._states_of(number) for number in range(self.trainer["num_processes"])]
        if len(parts) == learner.processes.count and len(parts[0]) == num_parts:
            states = parts[rank]
            own = self.tensors[_process_file(rank)]
            torch.set_rng_state(own[f"{RANDOM}.cpu"])
            if learner.device.type == "cuda" and f"{RANDOM}.cuda" in own:
                torch.cuda.set_rng_state(own[f"{RANDOM}.cuda"], learner.device)
        else:
            # Generators of other processes have no counterpart here: dropout differs from now on.
            states = _redistribute([state for part in parts for state in part], learner)
        learner.states = [state and state.to(learner.device) for state in states]

    def _states_of(self, rank: int) -> list[Carried]:
        """The lane states of one process."""
        tensors = self.tensors[_process_file(rank)]
        # Older versions had headers, then the same for all processes, elsewhere.
        headers = self.trainer.get("states") or files.parse_json(bytes(tensors[HEADERS].numpy()))
        return [
            None if header is None else put_together(header, tensors, f"{number}/")
            for number, header in enumerate(headers)
        ]


class CheckpointFolder:
    """The checkpoints of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._pending: Future[Any] | None = None
        """A checkpoint that is being written."""

    def names(self) -> list[CheckpointName]:
        """All checkpoints, in the order in which they were written."""
        if not self.path.is_dir():
            return []
        found = filter(None, (NAME.fullmatch(entry.name) for entry in self.path.iterdir()))
        return sorted(CheckpointName(int(match[2] or 0), int(match[1])) for match in found)

    def save(
        self,
        name: CheckpointName,
        learner: Learner,
        trainer: Mapping[str, Any],
        prune: Callable[[], None],
    ) -> None:
        """Copy a checkpoint to the host; write it, then prune, while training continues."""
        processes = learner.processes
        self.wait(processes)
        scratch = self.path / f".partial-{name}"
        self.path.mkdir(exist_ok=True)
        scratch.mkdir(exist_ok=True)
        jobs: list[Callable[[], object]] = []
        write_own = partial(_write, scratch / _process_file(processes.rank), _own(learner))
        if processes.count == 1:
            jobs.append(write_own)
        else:
            write_own()
            # The manifest has the checksums of all parts, so all must be written by then.
            processes.wait()
        if learner.is_sharded:
            jobs += _save_shards(scratch, learner)
        elif processes.is_first:
            weights, optimizer = learner.model.state_dict(), learner.optimizer.tensors()
            jobs.append(partial(_write, scratch / WEIGHTS, _copies(weights)))
            jobs.append(partial(_write, scratch / OPTIMIZER, _copies(optimizer)))
        if processes.is_first:
            plain = {**trainer, "num_processes": processes.count}
            jobs += [partial(self._publish, name, scratch, plain), prune]

        def finish() -> None:
            for job in jobs:
                job()

        self._pending = ThreadPoolExecutor(1).submit(finish)

    def wait(self, processes: Processes) -> None:
        """Return when the latest checkpoint is there, to all processes."""
        if self._pending is not None:
            pending, self._pending = self._pending, None
            pending.result()
            processes.wait()

    def end(self) -> None:
        """Let no checkpoint be written after this, whatever became of it."""
        if self._pending is not None:
            wait([self._pending])

    def _publish(self, name: CheckpointName, scratch: Path, trainer: Mapping[str, Any]) -> None:
        """Let a checkpoint appear, after all its parts have been written."""
        (scratch / TRAINER).write_text(json.dumps(trainer))
        sums = {file.name: files.checksum(file.read_bytes()) for file in sorted(scratch.iterdir())}
        (scratch / MANIFEST).write_text(json.dumps(sums))
        files.publish_folder(scratch, self.path / str(name))

    def abandon(self) -> None:
        """Delete what was not written, or not deleted, completely."""
        for scratch in self.path.glob(".partial-*"):
            if scratch.is_symlink():
                # What it leads to would be written into, and is somebody else's.
                scratch.unlink()
            shutil.rmtree(scratch, ignore_errors=True)

    def read(self, name: CheckpointName, *, only: Sequence[str] = ()) -> Checkpoint:
        """A checkpoint, or only these files of it, if it is as it was written."""
        try:
            trainer = files.parse_json(self._content(name, TRAINER))
            ranks = map(_process_file, range(trainer["num_processes"]))
            # One by one: of the processes that it claims there may be no files.
            wanted = only or chain((WEIGHTS, OPTIMIZER), ranks)
            tensors = {file: load(self._content(name, file)) for file in wanted}
        except DAMAGE as error:
            raise DamagedCheckpointError(f"{name} cannot be read ({one_line(error)})") from error
        return Checkpoint(trainer=trainer, tensors=tensors)

    def _content(self, name: CheckpointName, file: str) -> bytes:
        """A file of a checkpoint, if it has the checksum of the manifest."""
        folder = self.path / str(name)
        content = files.read_file(folder / file, most=None)
        if files.checksum(content) != files.read_json(folder / MANIFEST)[file]:
            raise ValueError(f"{file} is not as it was written")
        return content

    def notes(self) -> dict[CheckpointName, dict[str, Any]]:
        """The plain data of all checkpoints whose plain data can be read, in order.

        `best` is the name of the best checkpoint, as far as this one knows; None before any score.
        """
        found = {}
        for name in self.names():
            try:
                note = files.parse_json(self._content(name, TRAINER))
                numbers = [note["progress"][one] for one in ("best_rollbacks", "best_update")]
                best = None if numbers[1] is None else CheckpointName(*map(int, numbers))
                # Older versions wrote the flag under another name.
                found[name] = {"is_healthy": note.get("is_calm"), **note, "best": best}
            except DAMAGE:
                # Nothing is known of it: it is neither pruned nor rolled back to.
                continue
        return found

    def remove(self, names: Sequence[CheckpointName]) -> None:
        """Delete checkpoints, first by name: none is listed without some of its files."""
        for name in names:
            (self.path / str(name)).rename(self.path / f".partial-removed-{name}")
        if names:
            files.sync(self.path)
            self.abandon()

    def set_aside(self, name: CheckpointName) -> None:
        """Rename a damaged checkpoint, so that a person can inspect it."""
        aside = self.path / f"damaged-{name}"
        shutil.rmtree(aside, ignore_errors=True)
        with contextlib.suppress(FileNotFoundError):
            (self.path / str(name)).rename(aside)


def _process_file(rank: int) -> str:
    """The file of what only one process has: its lane states and random generators."""
    return f"process-{rank}.safetensors"


def _save_shards(scratch: Path, learner: Learner) -> list[Callable[[], object]]:
    """Copy a sharded model and its optimiser to the host, and begin to write them.

    Left to do: wait until all processes have written their parts, and join them in the first.
    """
    # Imported where it is used, since it takes a second.
    from torch.distributed.checkpoint._consolidate_hf_safetensors import (
        consolidate_safetensors_files,
    )
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
    from torch.distributed.checkpoint.state_dict_saver import async_save

    weights = learner.model.state_dict()
    # PyTorch joins tensors of no dimension, as numbers of steps are, to zeros.
    optimizer = {
        name: tensor if tensor.ndim else tensor.view(1)
        for name, tensor in learner.optimizer.tensors().items()
    }
    numbers = dict.fromkeys(weights, 1) | dict.fromkeys(optimizer, 2)
    tensors = {**weights, **optimizer}
    num_elements = sum(tensor.numel() for tensor in tensors.values())
    parts = scratch / "parts"
    # Safetensors, first of each process and then of all: nothing is pickled, and whoever reads a
    # checkpoint need not know how many processes wrote it.
    writer = HuggingFaceStorageWriter(
        str(parts), fqn_to_index_mapping=numbers, save_distributed=True
    )
    future = async_save(tensors, storage_writer=writer, process_group=learner.writers)
    assert isinstance(future, Future)

    def settle() -> None:
        try:
            future.result()
        except CheckpointException as error:
            # Of one process, reported by all.
            raise next(iter(error.failures.values()))[0] from error

    def join() -> None:
        found = [shape for file in parts.iterdir() for shape in files.tensor_shapes(file).values()]
        # PyTorch joins what it finds: a part that is not there yet would be zeros.
        if sum(map(math.prod, found)) != num_elements:
            raise OSError(f"a run's processes need one folder that all of them see: {scratch}")
        consolidate_safetensors_files(glob.escape(str(parts)), str(scratch), numbers)
        shutil.rmtree(parts)
        (scratch / "model.safetensors.index.json").unlink()
        # Before its first step an optimiser has no state.
        _write(scratch / OPTIMIZER, {})
        for file, name in zip(sorted(scratch.glob("model-*")), (WEIGHTS, OPTIMIZER), strict=False):
            file.rename(scratch / name)

    return [settle, join] if learner.processes.is_first else [settle]


def _own(learner: Learner) -> dict[str, Tensor]:
    """The lane states and random generators of this process."""
    headers: list[Any] = []
    tensors = {f"{RANDOM}.cpu": torch.get_rng_state()}
    if learner.device.type == "cuda":
        tensors[f"{RANDOM}.cuda"] = torch.cuda.get_rng_state(learner.device)
    for number, state in enumerate(learner.states):
        header, parts = (None, {}) if state is None else take_apart(state)
        headers.append(header)
        tensors |= {f"{number}/{name}": tensor for name, tensor in _copies(parts).items()}
    # Lanes, and so headers, may differ between processes.
    tensors[HEADERS] = torch.frombuffer(bytearray(json.dumps(headers).encode()), dtype=torch.uint8)
    return tensors


def _redistribute(states: list[Carried], learner: Learner) -> list[Carried]:
    """This process's share of lane states that other numbers of processes or parts wrote."""
    families: list[State] = [state for state in states if isinstance(state, State)]
    cells: list[LSTMState] = [state for state in states if isinstance(state, LSTMState)]
    # Lanes of several depths cannot change places: they restart.
    depths = {passes_of(state) for state in families}
    if len(depths) > 1 or (not families and not cells):
        return [None] * len(learner.states)
    whole = State.join(families) if families else LSTMState.join(cells)
    lanes = lanes_of_process(learner.processes.rank, learner.processes.count, whole.batch_size)
    # As `Learner` cuts a batch.
    parts = torch.tensor(lanes).tensor_split(len(learner.states))
    return [whole.select(part) for part in parts]


def _copies(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors on the host, which the next update does not change."""
    return {
        name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in tensors.items()
    }


def _write(path: Path, tensors: dict[str, Tensor]) -> None:
    """Write tensors; `publish_folder` makes them durable."""
    path.write_bytes(save(tensors))
