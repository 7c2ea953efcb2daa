"""What a run says of itself: one JSON line at a time, and the same for TensorBoard."""

import json
import math
import os
from typing import Any

from torch.utils.tensorboard import SummaryWriter

from staircase_attention.training.run_folder import RunFolder


class MetricsLog:
    """The metrics of a run.

    `metrics.jsonl` holds nothing that depends on the clock, so that a run that was killed and
    resumed ends with the same bytes as one that was not; times go to `timing.jsonl`.
    """

    def __init__(self, folder: RunFolder, *, num_bytes: int, update: int) -> None:
        self._folder = folder
        _check_length(folder, num_bytes)
        with folder.metrics.open("ab") as file:
            file.truncate(min(num_bytes, file.tell()))
        self._file = folder.metrics.open("ab")
        self._timing = folder.timing.open("a")
        self._board = SummaryWriter(str(folder.tensorboard), purge_step=update + 1)

    @property
    def num_bytes(self) -> int:
        """Length of the metrics so far: where to cut when resuming from here."""
        return self._folder.metrics.stat().st_size

    def write(self, kind: str, update: int, **values: Any) -> None:  # noqa: ANN401
        """Log some values of one update."""
        self._folder.require_own()
        plain = {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in values.items()
        }
        line = json.dumps({"kind": kind, "update": update, **plain})
        self._file.write(f"{line}\n".encode())
        self._file.flush()
        os.fsync(self._file.fileno())
        for name, value in values.items():
            if isinstance(value, (int, float)):
                self._board.add_scalar(f"{kind}/{name}", value, update)

    def write_timing(self, update: int, **values: float) -> None:
        """Log what the clock says."""
        self._folder.require_own()
        self._timing.write(json.dumps({"update": update, **values}) + "\n")
        self._timing.flush()
        for name, value in values.items():
            self._board.add_scalar(f"timing/{name}", value, update)

    def close(self) -> None:
        """Write out what is left."""
        self._file.close()
        self._timing.close()
        # TensorBoard's writer opens its file anew by name, wherever that leads to now.
        if not self._folder.is_another:
            self._board.close()


def _check_length(folder: RunFolder, num_bytes: int) -> None:
    """Refuse metrics of which something was lost, unless they were emptied on purpose.

    A run writes them to the disk before the checkpoint that tells their length.
    """
    is_there = folder.metrics.exists()
    length = folder.metrics.stat().st_size if is_there else 0
    if length < num_bytes and (length or not is_there):
        raise ValueError(
            f"a run's metrics must have the {num_bytes} bytes that its checkpoint tells of, got "
            f"{folder.metrics} with {length}; put it back, or go on without what is lost by "
            f"making it an empty file: truncate -s 0 {folder.metrics}"
        )
