"""One process or several: who this one is, and how they agree."""

import atexit
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel


@dataclass(frozen=True, slots=True)
class Processes:
    """The processes that train together."""

    rank: int = 0
    count: int = 1

    @property
    def is_first(self) -> bool:
        """Whether this one writes files and speaks."""
        return self.rank == 0

    def wait(self) -> None:
        """Go on when all have come here."""
        if self.count > 1:
            dist.barrier()

    def total(self, numbers: Tensor) -> Tensor:
        """The sum over all processes."""
        if self.count > 1:
            dist.all_reduce(numbers)
        return numbers

    def agree(self, flag: bool) -> bool:
        """What the first process says."""
        if self.count == 1:
            return flag
        place = "cuda" if dist.get_backend() == "nccl" else "cpu"
        shared = torch.tensor([int(flag)], device=place)
        dist.broadcast(shared, src=0)
        return bool(shared.item())

    def wrap(self, model: nn.Module, device: torch.device) -> nn.Module:
        """The model as it is called in training: gradients are averaged over all processes."""
        if self.count == 1:
            return model
        places = [device] if device.type == "cuda" else None
        return DistributedDataParallel(model, device_ids=places)


def is_first_process() -> bool:
    """Whether this process writes files, as far as torchrun has said; alone, it does."""
    return os.environ.get("RANK", "0") == "0"


@contextmanager
def joined_processes(device: torch.device) -> Iterator[Processes]:
    """The processes that torchrun started, or this one alone."""
    count = int(os.environ.get("WORLD_SIZE", "1"))
    if count == 1:
        yield Processes()
        return
    if not dist.is_initialized():
        if device.type == "cuda":
            torch.cuda.set_device(device)
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
        # Once a program: a second meeting could find the addresses of the first.
        atexit.register(dist.destroy_process_group)
    yield Processes(rank=dist.get_rank(), count=count)
