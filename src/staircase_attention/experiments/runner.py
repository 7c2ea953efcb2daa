"""Carrying out an experiment: what is not done yet, one run after another or several at a time."""

from staircase_attention.experiments.experiment import Experiment
from staircase_attention.experiments.planned_run import Resume, Train
from staircase_attention.experiments.report import Report, collect, write_report
from staircase_attention.experiments.side_by_side import carry_out_side_by_side, check_jobs
from staircase_attention.training import Display, is_first_process


def carry_out(
    experiment: Experiment,
    *,
    train: Train,
    resume: Resume,
    progress: Display | None,
    jobs: int = 1,
) -> Report:
    """Do what is not done yet; the report is written anew after every run, stopped ones included.

    Runs that have a result are left as they are, unfinished and failed ones are taken up again.
    One run at a time is done in this process, of several at a time each has its own.
    """
    check_jobs(jobs)
    if jobs > 1:
        return carry_out_side_by_side(
            experiment, jobs=jobs, train=train, resume=resume, progress=progress
        )
    experiment.check()
    write = write_report if is_first_process() else collect
    report = write(experiment)
    runs = experiment.runs
    for number, run in enumerate(runs, start=1):
        if run.is_over:
            continue
        if progress is not None:
            progress.say(f"run {number} of {len(runs)}: {run.title}")
        try:
            run.carry_out(train, resume, progress)
        finally:
            report = write(experiment)
    return report
