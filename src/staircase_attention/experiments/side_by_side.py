"""Several runs at a time, each in a process of its own, on one GPU or the cores of one CPU."""

import os
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import wait

import torch

from staircase_attention.cores import available_cores
from staircase_attention.experiments.experiment import Experiment, check_count
from staircase_attention.experiments.planned_run import PlannedRun, Resume, Train
from staircase_attention.experiments.report import Report, write_report
from staircase_attention.experiments.run_process import Job, RunProcess, check_portable
from staircase_attention.experiments.watching import RunView, Watching
from staircase_attention.training import Display, StopRequested
from staircase_attention.training.processes import StopRequest, stop_requests

LOOK_EVERY_SECONDS = 0.2
"""How long a signal may wait until it is seen."""


def carry_out_side_by_side(
    experiment: Experiment, *, jobs: int, train: Train, resume: Resume, progress: Display | None
) -> Report:
    """As `carry_out`, with up to so many runs under way; they begin in the same order."""
    check_portable(train=train, resume=resume)
    experiment.check()
    report = write_report(experiment)
    runs = experiment.runs
    left = deque((number, run) for number, run in enumerate(runs, 1) if not run.is_over)
    threads = threads_a_run(jobs)
    with stop_requests() as wish, _crew(Watching(progress), experiment) as crew:
        while left or crew.at_work:
            if wish.number:
                left.clear()
                crew.ask_to_stop()
            while left and len(crew.at_work) < jobs:
                number, run = left.popleft()
                job = Job(
                    run=run,
                    train=train,
                    resume=resume,
                    num_threads=threads,
                    command=tuple(sys.argv),
                )
                crew.begin(job, f"run {number} of {len(runs)}")
            if crew.see_who_ended(wish):
                report = write_report(experiment)
        if wish.number:
            raise StopRequested(wish.number, _farewell(experiment, runs))
    return report


def check_jobs(jobs: int) -> None:
    """Refuse what is no number of runs at a time, and several where torchrun has its own."""
    check_count("jobs", jobs)
    count = int(os.environ.get("WORLD_SIZE", "1"))
    if jobs > 1 and count > 1:
        raise ValueError(
            f"the {count} processes of torchrun work on one run at a time, got jobs = {jobs}; "
            "leave it at 1, or start without torchrun"
        )


def threads_a_run(jobs: int) -> int | None:
    """A run's share of a CPU, at most what it would take if it were alone; None on a GPU."""
    if torch.cuda.is_available():
        return None
    return min(torch.get_num_threads(), max(1, available_cores() // jobs))


class Crew:
    """The runs that are under way."""

    def __init__(self, watching: Watching) -> None:
        self.at_work: dict[RunProcess, RunView] = {}
        self._watching = watching
        self._is_asked = False

    def begin(self, job: Job, place: str) -> None:
        """One more."""
        view = self._watching.begin(job.run, place)
        self.at_work[RunProcess(job)] = view

    def see_who_ended(self, wish: StopRequest) -> bool:
        """Show what the runs say, for a moment; whether some have ended."""
        wait([process.connection for process in self.at_work], LOOK_EVERY_SECONDS)
        self._note_who_shares()
        ended = [process for process in self.at_work if self._has_ended(process)]
        for process in ended:
            view = self.at_work.pop(process)
            death = process.death(is_stopping=bool(wish.number))
            process.close()
            if death is not None:
                process.run.write_failure(death)
            self._watching.end(process.run, view)
        return bool(ended)

    def ask_to_stop(self) -> None:
        """Let all runs save themselves and stop; once is enough."""
        if not self._is_asked and self.at_work:
            self._watching.say("stopping as soon as the runs under way are saved")
            for process in self.at_work:
                process.ask_to_stop()
        self._is_asked = True

    def kill(self) -> None:
        """Stop all runs at once."""
        for process in self.at_work:
            process.kill()

    def close(self) -> None:
        """Wait until no process is left."""
        for process in self.at_work:
            process.connection.close()
        for process in self.at_work:
            process.close()
        self._watching.close()

    def _note_who_shares(self) -> None:
        """Write down beside runs that are being trained that they are not alone."""
        if len(self.at_work) > 1:
            for process in self.at_work:
                if not process.was_trained:
                    process.run.note_shared()

    def _has_ended(self, process: RunProcess) -> bool:
        for message in process.messages():
            if message is None:
                return True
            self.at_work[process].show(message)
        return False


@contextmanager
def _crew(watching: Watching, experiment: Experiment) -> Iterator[Crew]:
    """A crew of which nobody stays behind: what an error leaves under way saves itself first."""
    crew = Crew(watching)
    try:
        yield crew
    except KeyboardInterrupt:
        crew.kill()
        crew.close()
        write_report(experiment)
        raise
    finally:
        crew.close()


def _farewell(experiment: Experiment, runs: list[PlannedRun]) -> str:
    num_over = sum(run.is_over for run in runs)
    again = experiment.command or "the same call"
    return (
        f"stopped with {num_over} of {len(runs)} runs at their end, the others saved as far as "
        f"they got; go on with: {again}"
    )
