"""Runs an experiment: `staircase train` and `staircase resume` as subprocesses, N at a time.

The run folder is the protocol. A child gets its recipe as a file, writes its metrics and its result
into its folder and its messages into a log beside it. This process reads them, for progress bars
and for the report, which it writes again whenever a run ends. So a run does not depend on what
started it: kill this process, and its runs finish or can be resumed one by one.
"""

import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from rich.progress import TaskID

from staircase_attention.checks import check_integer, input_error
from staircase_attention.clock import clock
from staircase_attention.cores import available_cores
from staircase_attention.experiments.experiment import Experiment, PlannedRun
from staircase_attention.experiments.report import Report, write_report
from staircase_attention.experiments.results import beside, latest_facts, read_run
from staircase_attention.files import FolderInUseError, write_whole
from staircase_attention.training import StopRequested
from staircase_attention.training.display import progress_bars, words
from staircase_attention.training.processes import stop_requests
from staircase_attention.training.run_folder import RunFolder

POLL_SECONDS = 0.05
"""How often children are asked whether they have ended."""
SHOW_SECONDS = 0.5
"""How often progress is read from their folders."""
LINE_SECONDS = 10.0
"""How often a line of progress is printed where there is no terminal."""


def carry_out(
    experiment: Experiment,
    *,
    jobs: int = 1,
    processes: int = 1,
    threads: int | None = None,
    progress: bool = False,
) -> Report:
    """Do what is not done yet: finished runs are left alone, unfinished and failed ones resumed.

    Args:
        experiment: the rows and seeds to run.
        jobs: runs at a time.
        processes: of each run, started by torchrun; 1: no torchrun.
        threads: CPU threads per process; by default a fair share of the cores.
        progress: show bars in a terminal, lines elsewhere, on standard error.
    """
    check_integer("jobs", jobs, minimum=1, example=2)
    check_integer("processes", processes, minimum=1, example=8)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise input_error(
            "several runs are started by one process", "torchrun", "use --processes instead of it"
        )
    experiment.check()
    report = write_report(experiment)
    runs = experiment.runs
    waiting = deque((place, run) for place, run in enumerate(runs, 1) if not run.is_over)
    environment = child_environment(jobs * processes, threads)
    monitor = Monitor(is_shown=progress)
    with stop_requests() as stop, _children(experiment, monitor) as active:
        while waiting or active:
            if stop.number:
                waiting.clear()
                for child in active:
                    child.stop()
            while waiting and len(active) < jobs:
                place, run = waiting.popleft()
                monitor.say(f"run {place} of {len(runs)}: {run.title}")
                if not _is_in_use(run, monitor):
                    active.append(Child(run, processes=processes, environment=environment))
            time.sleep(POLL_SECONDS)
            monitor.show(active)
            if len(active) > 1:
                for child in active:
                    child.note_shared()
            for child in [child for child in active if child.has_ended()]:
                active.remove(child)
                monitor.end(child)
                report = write_report(experiment)
        if stop.number:
            num_over = sum(run.is_over for run in runs)
            raise StopRequested(
                stop.number,
                f"stopped with {num_over} of {len(runs)} runs finished, the others saved; "
                f"resume with: {experiment.command or 'the same call'}",
            )
    return report


class Child:
    """A run under way: train or resume, then score other lengths, one command after another."""

    def __init__(self, run: PlannedRun, *, processes: int, environment: dict[str, str]) -> None:
        self.run = run
        self._processes, self._environment = processes, environment
        self._is_stopping = False
        self._is_training = False
        beside(run.folder, "failure.txt").unlink(missing_ok=True)
        run.folder.parent.mkdir(parents=True, exist_ok=True)
        self._log_path = beside(run.folder, "log")
        self._log_path.write_bytes(b"")
        self._process = self._start()

    def _start(self) -> subprocess.Popen[bytes] | None:
        """Start the next command; None where nothing is left to do."""
        self._is_training = not self.run.is_trained
        command = self.run.next_command(processes=self._processes)
        if command is None:
            return None
        with self._log_path.open("ab") as log:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment,
            )

    def has_ended(self) -> bool:
        """Whether nothing is under way any more; starts the next command where there is one."""
        status = 0 if self._process is None else self._process.poll()
        if status is None:
            return False
        if self._is_stopping:
            return True
        # What a command has achieved is in the folder; a run that diverged exits with 1.
        if self.run.is_trained if self._is_training else self.run.is_over:
            self._process = self._start()
            return self._process is None
        self._write_failure(status)
        return True

    def _write_failure(self, status: int) -> None:
        """Record a failure beside the run: the reason in one line, then the whole log."""
        log = self._log_path.read_text(errors="replace").strip()
        reason = log.rpartition("\n")[2].removeprefix("staircase: ")
        if status < 0:
            hint = ", perhaps out of memory" if status == -signal.SIGKILL else ""
            reason = f"killed by {signal.Signals(-status).name}{hint}"
        reason = reason or f"exit status {status}, but no result"
        write_whole(beside(self.run.folder, "failure.txt"), f"{reason}\n\n{log}\n".encode())

    def note_shared(self) -> None:
        """Record that its times are not its own; scores have none."""
        if self._is_training:
            self.run.note_shared()

    def stop(self) -> None:
        """Ask the run to save itself and stop; once is enough."""
        if self._process is not None and not self._is_stopping:
            self._process.terminate()
        self._is_stopping = True

    def end(self, *, at_once: bool) -> None:
        """Wait until no process is left; killed, a run has its latest checkpoint."""
        self.stop()
        if self._process is not None:
            if at_once:
                self._process.kill()
            self._process.wait()


@contextmanager
def _children(experiment: Experiment, monitor: "Monitor") -> Iterator[list[Child]]:
    """The runs under way, of which none outlives an error or a second Ctrl-C."""
    active: list[Child] = []
    try:
        yield active
    except BaseException as error:
        for child in active:
            child.stop()
        for child in active:
            child.end(at_once=isinstance(error, KeyboardInterrupt))
        if isinstance(error, KeyboardInterrupt):
            write_report(experiment)
        raise
    finally:
        monitor.close()


def _is_in_use(run: PlannedRun, monitor: "Monitor") -> bool:
    """Whether another process works in the folder, which then finishes the run."""
    if not run.folder.exists():
        return False
    try:
        with RunFolder(run.folder).locked():
            return False
    except FolderInUseError as error:
        monitor.say(str(error))
        return True


def child_environment(num_processes: int, threads: int | None = None) -> dict[str, str]:
    """This environment, with modules found where this process finds them, and cores shared out."""
    folders = [folder or os.getcwd() for folder in sys.path]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(folders)}
    if threads is None and num_processes > 1:
        share = max(1, available_cores() // num_processes)
        threads = min(share, int(os.environ.get("OMP_NUM_THREADS", share)))
    return environment if threads is None else environment | {"OMP_NUM_THREADS": str(threads)}


class Monitor:
    """What a person sees of the runs under way: bars in a terminal, lines elsewhere."""

    def __init__(self, *, is_shown: bool) -> None:
        self._is_shown = is_shown
        self._bars = progress_bars() if is_shown and sys.stderr.isatty() else None
        if self._bars is not None:
            self._bars.start()
        self._tasks: dict[str, TaskID] = {}
        self._last_shown = self._last_line = time.monotonic()

    def say(self, text: str) -> None:
        """Print a line, above the bars if there are any."""
        if self._bars is not None:
            self._bars.console.print(text, highlight=False, markup=False, soft_wrap=True)
        elif self._is_shown:
            sys.stderr.write(f"{text}\n")
            sys.stderr.flush()

    def show(self, active: list[Child]) -> None:
        """Show how far the runs are, if that was some time ago."""
        now = time.monotonic()
        if not self._is_shown or now - self._last_shown < SHOW_SECONDS:
            return
        self._last_shown = now
        if self._bars is None and now - self._last_line < LINE_SECONDS:
            return
        self._last_line = now
        for child in active:
            update, facts = latest_facts(child.run.folder)
            self._show_run(child.run, update, words(facts))

    def _show_run(self, run: PlannedRun, update: int, facts: str) -> None:
        total = run.recipe.training.num_updates
        if self._bars is None:
            self.say(f"{run.title}: update {update:,} of {total:,}  {facts}")
            return
        if run.title not in self._tasks:
            # A terminal may have no room for whole titles: their ends tell runs apart.
            name = run.title.rpartition("/")[2]
            self._tasks[run.title] = self._bars.add_task(name, total=total, facts="")
        self._bars.update(self._tasks[run.title], completed=update, facts=facts)

    def end(self, child: Child) -> None:
        """Print how a run ended, and remove its bar."""
        self.say(f"{child.run.title}: {outcome(child.run)}")
        task = self._tasks.pop(child.run.title, None)
        if self._bars is not None and task is not None:
            self._bars.remove_task(task)

    def close(self) -> None:
        """Leave the terminal as it was."""
        if self._bars is not None:
            self._bars.stop()


def outcome(run: PlannedRun) -> str:
    """How a run ended, in a few words."""
    record = read_run(run.folder, run.recipe.seed)
    if record.status == "failed":
        return f"failed ({record.failure})"
    if record.result is None:
        return "stopped"
    test = record.result.test or {}
    scores = {f"test_{name}": test[name] for name in ("error", "bits_per_byte") if name in test}
    facts = [record.status, words(scores), clock(record.result.wall_seconds)]
    return ", ".join(fact for fact in facts if fact)
