"""The processes of a run, one or several, their devices, and the signals that ask them to stop."""

import atexit
import itertools
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from staircase_attention.checks import input_error
from staircase_attention.cores import available_cores, idle_cores

# Heartbeats that may be missed before a process counts as stalled.
NUM_BEATS = 5


@dataclass(frozen=True, slots=True)
class Processes:
    """The processes that train together."""

    rank: int = 0
    count: int = 1

    @property
    def is_first(self) -> bool:
        """Whether this process writes files and messages."""
        return self.rank == 0

    def wait(self) -> None:
        """Return when all processes have called this."""
        if self.count > 1:
            dist.barrier()

    def total(self, *tensors: Tensor) -> None:
        """Replace tensors of one dtype by their sums over all processes, in one exchange."""
        if self.count > 1:
            flat = torch.cat([tensor.flatten() for tensor in tensors])
            dist.all_reduce(flat)
            sums = torch.split(flat, [tensor.numel() for tensor in tensors])
            for tensor, total in zip(tensors, sums, strict=True):
                tensor.copy_(total.view_as(tensor))

    def agree(self, flag: bool) -> bool:
        """The first process's flag."""
        if self.count == 1:
            return flag
        # NCCL moves tensors on GPUs only.
        device = "cuda" if dist.get_backend() == "nccl" else "cpu"
        shared = torch.tensor([int(flag)], device=device)
        dist.broadcast(shared, src=0)
        return bool(shared.item())

    def mesh(self, device: torch.device, *, by_node: bool) -> DeviceMesh:
        """The processes in a row or, by node, nodes x processes of a node."""
        per_node = int(os.environ.get("LOCAL_WORLD_SIZE", self.count)) if by_node else self.count
        if self.count % per_node:
            rule = "training.parallel=hsdp needs the same number of processes on every node"
            received = f"{self.count} in all and {per_node} on this one"
            raise input_error(rule, received, "start as many on each, or use fsdp")
        sizes = {"nodes": self.count // per_node, "processes": per_node}
        if per_node == self.count:
            del sizes["nodes"]
        return init_device_mesh(device.type, (*sizes.values(),), mesh_dim_names=(*sizes,))


def is_first_process() -> bool:
    """Whether this process writes files, according to torchrun; alone, it does."""
    return os.environ.get("RANK", "0") == "0"


def choose_device(name: str | None = None) -> torch.device:
    """The device of this name, by default a GPU if there is one.

    Of several processes, each has the GPU of its number.
    """
    kind, _, number = (name or ("cuda" if torch.cuda.is_available() else "cpu")).partition(":")
    if kind == "cuda" and not number:
        number = os.environ.get("LOCAL_RANK", "0")
    counts = {"cpu": 1, "cuda": torch.cuda.device_count()}
    if not (number or "0").isdecimal() or int(number or 0) >= counts.get(kind, 0):
        rule = "a device must be one that this machine has"
        raise input_error(rule, repr(name), "use cpu, or leave it out")
    return torch.device(f"{kind}:{number}" if number else kind)


@contextmanager
def chosen_threads(
    device: torch.device, recorded: int | None, say: Callable[[str], None]
) -> Iterator[None]:
    """On a CPU, train with a thread for every core that is idle, or as many as are recorded.

    Threads wait for each other many times per update: with one more than there are idle cores,
    training takes several times as long.
    """
    before = torch.get_num_threads()
    if device.type == "cpu" and "OMP_NUM_THREADS" not in os.environ:
        cores, idle = available_cores(), idle_cores()
        # A resumed run repeats its bytes only with as many threads as before.
        count = min(recorded or max(1, round(idle)), before)
        torch.set_num_threads(count)
        say(
            f"training with {count} of {cores} cores, of which {idle:.1f} are idle; "
            "OMP_NUM_THREADS sets another number"
        )
    try:
        yield
    finally:
        torch.set_num_threads(before)


def join_processes(device: torch.device, stall_seconds: float) -> Processes:
    """The processes that torchrun started, or this one alone.

    Several end with a line if one of them does not respond for `stall_seconds`.
    """
    count = int(os.environ.get("WORLD_SIZE", "1"))
    if count == 1:
        return Processes()
    if not dist.is_initialized():
        if device.type == "cuda":
            torch.cuda.set_device(device)
        store, rank, _ = next(rendezvous("env://"))
        # After a restart torchrun's store still has the addresses of processes that are gone. Only
        # on a single node do all processes count the same restarts.
        if os.environ.get("GROUP_WORLD_SIZE") == "1":
            store = PrefixStore(os.environ["TORCHELASTIC_RESTART_COUNT"], store)
        backend = "nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(backend, store=store, rank=rank, world_size=count)
        # Once per program: a second rendezvous could find the addresses of the first.
        atexit.register(dist.destroy_process_group)
        _watch_others(store.clone(), rank, count, stall_seconds)
    return Processes(rank=dist.get_rank(), count=count)


def _watch_others(store: Store, rank: int, count: int, seconds: float) -> None:
    """End this process, with a line, when another has not responded for some time.

    A process that is stopped does not fail: the others would wait for it in their next collective.
    Each sends heartbeats from a thread. The first process watches all others, they watch the first.
    """
    names = {f"heartbeat-{other}": other for other in (range(1, count) if rank == 0 else [0])}
    own, is_over = f"heartbeat-{rank}", threading.Event()
    store.set(own, "joined")
    pool = ThreadPoolExecutor(1)

    def exchange(beat: int) -> list[bytes]:
        store.set(own, str(beat))
        return [bytes(value) for value in store.multi_get(list(names))]

    def watch() -> None:
        heard, silences = dict.fromkeys(names, b""), dict.fromkeys(names, 0)
        # Heartbeats are counted, not seconds: a machine may sleep.
        for beat in itertools.count():
            if is_over.wait(seconds / NUM_BEATS):
                return
            try:
                values = pool.submit(exchange, beat).result(seconds)
                silent = []
                for (name, other), value in zip(names.items(), values, strict=True):
                    is_silent = value == heard[name] != b"over"
                    heard[name], silences[name] = value, silences[name] + 1 if is_silent else 0
                    silent += [f"rank {other}"] if silences[name] >= NUM_BEATS else []
            except TimeoutError:
                silent = ["rank 0 or torchrun, which holds the store"]
            except RuntimeError:
                # This program ends, or whoever held the store: PyTorch reports that itself.
                return
            if silent:
                sys.stderr.write(
                    f"staircase: processes must respond within {seconds:g} s "
                    f"(training.stall_seconds), got nothing from {', '.join(silent)}; "
                    "end it, and resume the run\n"
                )
                sys.stderr.flush()
                # The main thread waits in PyTorch, where no exception reaches it.
                os._exit(1)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()

    def end() -> None:
        is_over.set()
        thread.join()
        with suppress(dist.DistError):
            store.set(own, "over")

    atexit.register(end)


class StopRequested(Exception):  # noqa: N818
    """The run was asked to stop, and has saved itself."""

    def __init__(self, number: int, message: str) -> None:
        super().__init__(message)
        self.exit_status = 128 + number


class StopRequest:
    """The signal that asked the run to stop; 0 without one."""

    number = 0

    def receive(self, number: int, _frame: FrameType | None) -> None:
        """Remember a signal; a second Ctrl-C stops at once."""
        # A handler may run between any two instructions, in the middle of a save too. So it only
        # notes the signal, and the trainer stops where everything is whole.
        if self.number == signal.SIGINT == number:
            raise KeyboardInterrupt
        # No other signal takes the place of Ctrl-C, which is a person's.
        if self.number != signal.SIGINT:
            self.number = number


@contextmanager
def stop_requests() -> Iterator[StopRequest]:
    """Remember Ctrl-C, SIGTERM and SIGHUP for the trainer, which stops between two updates."""
    request, is_main = StopRequest(), threading.current_thread() is threading.main_thread()
    # Under nohup a run survives its terminal. Signals are received by the main thread only.
    survives = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    caught = [signal.SIGINT, signal.SIGTERM, *([] if survives else [signal.SIGHUP])]
    before = {one: signal.signal(one, request.receive) for one in caught if is_main}
    try:
        yield request
    finally:
        # A notebook or a comparison has handlers of its own.
        for number, handler in before.items():
            signal.signal(number, handler)
