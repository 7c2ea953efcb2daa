"""Runs an experiment: `staircase train` and `staircase resume` as subprocesses, N at a time.

The run folder is the protocol. A child gets its recipe as a file, writes its metrics and its result
into its folder and its messages into a log beside it. This process reads them, for progress bars
and for the report, which it writes again whenever a run ends. So a run does not depend on what
started it: kill this process, and its runs save themselves and stop.
"""

import os
import re
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from staircase_attention.checks import InputError, check_integer, input_error
from staircase_attention.cores import STOP_AT_END_OF_INPUT, available_cores
from staircase_attention.display import Display, choose_display, clock, words
from staircase_attention.experiments import results
from staircase_attention.experiments.report import Report, write_report
from staircase_attention.files import FolderInUseError, check_can_hold, write_json, write_whole
from staircase_attention.tasks import load_task, split, with_length
from staircase_attention.training import Recipe, RunFolder, StopRequested, TaskChoice, stop_requests
from staircase_attention.training.learner import check_recipe

# -P: the working folder is no place to import packages from.
STAIRCASE = [sys.executable, "-P", "-m", "staircase_attention"]
LENGTHS = [sys.executable, "-P", "-m", "staircase_attention.experiments.results"]
TORCHRUN = [sys.executable, "-P", "-m", "torch.distributed.run", "--standalone"]
# How often children are asked whether they have ended.
POLL_SECONDS = 0.05
# How often it is shown how far they are.
SHOW_SECONDS = 0.5


def carry_out(
    reports: Sequence[Report],
    *,
    jobs: int = 1,
    processes: int = 1,
    threads: int | None = None,
    progress: bool = False,
) -> Iterator[Report]:
    """Do what is not done yet: finished runs are left alone, unfinished and failed ones resumed.

    `jobs` runs at a time, each of several processes if torchrun is to start it, each with `threads`
    CPU threads, by default a fair share of the cores. Progress is shown on standard error. Yields
    every report, written, as soon as none of its runs is left; each has a folder of its own.
    """
    check_integer("jobs", jobs, minimum=1, example=2)
    check_integer("processes", processes, minimum=1, example=8)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        rule = "several runs are started by one process"
        raise input_error(rule, "torchrun", "use --processes instead of it")
    runs = {run: report.folder for report in reports for run in planned_runs(report)}
    left = {report.folder: write_report(report) for report in reports}
    waiting = deque(run for run in runs if not run.is_over)
    environment = child_environment(jobs * processes, threads)
    display, last_shown = choose_display(quiet=not progress), time.monotonic()
    total = amount_left(runs)[0]
    display.begin("", total - amount_left(waiting)[0], total)

    def title(run: Run) -> str:
        return f"{runs[run].name}, {run.title}" if len(reports) > 1 else run.title

    with stop_requests() as stop, _children(left, display) as (active, stdin):
        while left:
            # After a stop request the loop continues until all runs have saved themselves.
            if stop.number:
                waiting.clear()
                for run in active:
                    run.stop()
            ended = [run for run, work in active.items() if next(work, True)]
            for run in ended:
                del active[run]
                display.say(f"{title(run)}: {outcome(run)}")
            # The next ones begin before reports are written, which takes seconds.
            while waiting and len(active) < jobs:
                run = waiting.popleft()
                display.say(f"run {[*runs].index(run) + 1} of {len(runs)}: {title(run)}")
                if not _is_in_use(run, display):
                    active[run] = run.work(processes, environment, stdin)
                    next(active[run], None)
            for folder in {runs[run] for run in ended}:
                left[folder] = write_report(left[folder])
            if stop.number and not active:
                num_over = sum(run.is_over for run in runs)
                raise StopRequested(
                    stop.number,
                    f"stopped with {num_over} of {len(runs)} runs finished, the others saved; "
                    f"resume with: {next(iter(left.values())).command}",
                )
            if not stop.number:
                under_way = {runs[run] for run in (*active, *waiting)}
                if not under_way or time.monotonic() - last_shown > SHOW_SECONDS:
                    last_shown = time.monotonic()
                    number, facts = amount_left(waiting, active)
                    display.advance(total - number, **facts)
                for folder in [folder for folder in left if folder not in under_way]:
                    yield left.pop(folder)
            if len(active) > 1:
                for run in active:
                    run.note_shared()
            time.sleep(POLL_SECONDS)


class Run:
    """A recipe with its seed in its folder: train or resume, then score other lengths.

    `lengths` are episode lengths at which its best weights are also scored.
    """

    def __init__(self, recipe: Recipe, folder: Path, lengths: Sequence[int] = ()) -> None:
        self.recipe, self.folder, self.lengths = recipe, folder, lengths
        self._written = RunFolder(folder)
        self._process: subprocess.Popen[bytes] | None = None
        self._is_training = self._is_stopping = False

    @property
    def title(self) -> str:
        """The recipe's name and the seed."""
        return f"{self.recipe.name}, seed {self.recipe.seed}"

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to do: it has a result, all scores, and no failure on record."""
        if results.beside(self.folder, "failure.txt").exists():
            return False
        return self._written.is_finished and not self._missing_lengths

    @property
    def _missing_lengths(self) -> list[int]:
        """Lengths still to be scored; none for a run that diverged without a good checkpoint."""
        if self._written.read_result().best_update is None:
            return []
        known = results.read_lengths(self.folder)
        return [length for length in self.lengths if length not in known]

    def next_command(self, *, processes: int = 1) -> list[str] | None:
        """The command that brings the run further: train, resume, or score; None when it is over.

        A recipe need not have a name on the command line, so `train` gets it as a file.
        """
        torchrun = [*TORCHRUN, f"--nproc-per-node={processes}", "--no-python"]
        staircase = [*torchrun, *STAIRCASE] if processes > 1 else STAIRCASE
        if self._written.is_unbegun:
            recipe = results.beside(self.folder, "recipe.json")
            recipe.parent.mkdir(parents=True, exist_ok=True)
            write_json(recipe, self.recipe.to_plain())
            # The times of an earlier run in this folder, which was removed, do not count.
            results.beside(self.folder, "shared.txt").unlink(missing_ok=True)
            return [*staircase, "train", str(recipe), "--output", str(self.folder), "--quiet"]
        if not self._written.is_finished:
            return [*staircase, "resume", str(self.folder), "--quiet"]
        if lengths := self._missing_lengths:
            return [*LENGTHS, str(self.folder), *map(str, lengths)]
        return None

    def work(self, processes: int, environment: dict[str, str], stdin: int) -> Iterator[None]:
        """Do what is left, one command after another; yields while one of them is under way.

        What a command has achieved is in the folder. All of them write to the same log.
        """
        failure, log = (results.beside(self.folder, one) for one in ("failure.txt", "log"))
        failure.unlink(missing_ok=True)
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        log.unlink(missing_ok=True)
        while command := self.next_command(processes=processes):
            self._is_training = not self._written.is_finished
            with log.open("ab") as output:
                self._process = subprocess.Popen(
                    command, stdin=stdin, stdout=output, stderr=output, env=environment
                )
            while (status := self._process.poll()) is None:
                yield
            if self._is_stopping:
                return
            # A run that diverged exits with 1.
            if not (self._written.is_finished if self._is_training else self.is_over):
                # A failure is recorded beside the run: the reason in one line, then the whole log.
                text = log.read_text(errors="replace").strip()
                reason = failure_reason(text) or f"exit status {status}, but no result"
                if status < 0:
                    hint = ", perhaps out of memory" if status == -signal.SIGKILL else ""
                    reason = f"killed by {signal.Signals(-status).name}{hint}"
                write_whole(failure, f"{reason}\n\n{text}\n".encode())
                return

    def note_shared(self) -> None:
        """Record that other runs ran at the same time, so that times are not its own."""
        note = results.beside(self.folder, "shared.txt")
        # Only training is timed. A full disk must not end a run because of a note.
        with suppress(OSError):
            if self._is_training and self.folder.exists() and not note.exists():
                write_whole(note, b"Other runs ran at the same time as this one.\n")

    def stop(self) -> None:
        """Ask the run to save itself and stop; once is enough."""
        if self._process is not None and not self._is_stopping:
            self._process.terminate()
        self._is_stopping = True

    def end(self, *, at_once: bool) -> None:
        """Wait until no process is left; killed, a run has its latest checkpoint."""
        if self._process is not None:
            if at_once:
                self._process.kill()
            self._process.wait()


def planned_runs(report: Report) -> list[Run]:
    """All runs: first all rows with one seed, so that a report is useful long before the end.

    What cannot be built, written or resumed is refused before any work is done.
    """
    folder, chosen = report.folder, [row for row in report.rows if row.is_wanted]

    def run(row: results.Row, seed: int) -> Run:
        recipe = replace(row.recipe, seed=seed)
        return Run(recipe, folder / row.name / f"{results.PREFIX}{seed}", report.lengths)

    seeds = range(report.first_seed, report.first_seed + report.num_seeds)
    runs = [run(row, seed) for seed in seeds for row in chosen]
    # Rows often share their task, whose test episodes take a while to draw.
    tasks = {repr((row.recipe.task, row.recipe.data_seed)): row.recipe for row in chosen}
    for recipe in tasks.values() if report.lengths else ():
        check_lengths(recipe, report.lengths)
    for recipe in {one.recipe.name: one.recipe for one in runs if not one.is_over}.values():
        try:
            check_recipe(recipe)
        except InputError as error:
            raise InputError(f"{recipe.name}: {error}") from error
    for place in (folder, folder.parent):  # A suite's page is above the folders of its tasks.
        if RunFolder(place).config.exists():
            received = f"{str(place)!r}, which is a run folder"
            raise input_error("results need a folder of their own", received, "name another")
    check_can_hold(folder, "the folder of results")
    # Also runs with seeds that are not wanted now, as the report counts them.
    for one in (run(row, seed) for row in chosen for seed in results.seeds_in(folder / row.name)):
        if not RunFolder(one.folder).is_unbegun:
            RunFolder(one.folder).require_same(one.recipe, init=None)
    return runs


def check_lengths(recipe: Recipe, lengths: Sequence[int]) -> None:
    """Refuse lengths of which a recipe's task has no test episodes."""
    if not isinstance(recipe.task, TaskChoice):
        received = f"{recipe.name}, which trains on a corpus"
        raise input_error("lengths are for tasks with episodes", received, "leave them out")
    task = load_task(recipe.task.reference, **recipe.task.options)
    for length in lengths:
        split(with_length(task, length), "test", recipe.data_seed)


@contextmanager
def _children(
    reports: Mapping[Path, Report], display: Display
) -> Iterator[tuple[dict[Run, Iterator[None]], int]]:
    """The runs under way, of which none outlives an error or a second Ctrl-C; and their input."""
    active: dict[Run, Iterator[None]] = {}
    # A pipe that ends when this process does, even by SIGKILL.
    reader, writer = os.pipe()
    try:
        yield active, reader
    except BaseException as error:
        # All are asked before any is waited for, so that they save at the same time.
        for run in active:
            run.stop()
        for run in active:
            run.end(at_once=isinstance(error, KeyboardInterrupt))
        if isinstance(error, KeyboardInterrupt):
            for report in reports.values():
                write_report(report)
        raise
    finally:
        os.close(reader)
        os.close(writer)
        display.end()


def _is_in_use(run: Run, display: Display) -> bool:
    """Whether another process works in the folder, which then finishes the run."""
    if not run.folder.exists():
        return False
    try:
        with RunFolder(run.folder).locked():
            return False
    except FolderInUseError as error:
        display.say(str(error))
        return True


def child_environment(num_processes: int, threads: int | None = None) -> dict[str, str]:
    """This environment, with modules found where this process finds them, and cores shared out."""
    # An empty entry of sys.path is the working folder.
    folders = [folder or os.getcwd() for folder in sys.path]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(folders), STOP_AT_END_OF_INPUT: "1"}
    if threads is None and num_processes > 1:
        share = max(1, available_cores() // num_processes)
        threads = min(share, int(os.environ.get("OMP_NUM_THREADS", share)))
    return environment if threads is None else environment | {"OMP_NUM_THREADS": str(threads)}


def amount_left(waiting: Iterable[Run], active: Iterable[Run] = ()) -> tuple[int, dict[str, float]]:
    """Updates, and lengths to score, that are left; and the latest facts of a run under way."""
    runs, facts = [*waiting, *active], dict[str, float]()
    left = sum(run.recipe.training.num_updates + len(run.lengths) for run in runs)
    for run in active:
        update, facts = results.latest_facts(run.folder)
        left -= update
    # The losses of several runs are not one curve.
    facts.pop("loss", None)
    return left, facts


def failure_reason(log: str) -> str:
    """The last message in a log, of `staircase` or of an exception, in one line."""
    # torchrun's own account comes last, and PyTorch puts a rank before each line of a traceback.
    log = re.split(r"^[EW]\d{4} .*torch/distributed/elastic", log, maxsplit=1, flags=re.M)[0]
    log = re.sub(r"^\[rank\d+\]: ?", "", log, flags=re.M).strip()
    before = r"^staircase: |^Traceback \(most recent call last\):\n(?:\s.*\n)*"
    return " ".join(re.split(before, log, flags=re.M)[-1].split())


def outcome(run: Run) -> str:
    """How a run ended, in a few words."""
    record = results.read_run(run.folder, run.recipe.seed, lengths=run.lengths)
    if record.status == "failed":
        return f"failed ({record.failure})"
    if record.result is None:
        return "stopped"
    if record.status == "unfinished":
        return "stopped before it was scored at all lengths"
    test = record.result.scores.get("test", {})
    scores = {f"test_{name}": test[name] for name in ("error", "bits_per_byte") if name in test}
    ending = record.result.outcome if record.result.outcome == "did not learn" else record.status
    facts = [ending, words(scores), clock(record.result.wall_seconds)]
    return ", ".join(fact for fact in facts if fact)
