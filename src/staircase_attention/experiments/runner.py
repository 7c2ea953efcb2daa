"""Carrying out an experiment: what is not done yet, one run after another."""

from staircase_attention.experiments.experiment import Experiment
from staircase_attention.experiments.planned_run import Resume, Train
from staircase_attention.experiments.report import Report, collect, write_report
from staircase_attention.training import Display, is_first_process


def carry_out(
    experiment: Experiment, *, train: Train, resume: Resume, progress: Display | None
) -> Report:
    """Do what is not done yet; the report is written anew after every run, stopped ones included.

    Runs that have a result are left as they are, unfinished and failed ones are taken up again.
    """
    experiment.check()
    write = write_report if is_first_process() else collect
    report = write(experiment)
    runs = experiment.runs
    for number, run in enumerate(runs, start=1):
        if run.is_over:
            continue
        if progress is not None:
            name = f"{run.recipe.name}, seed {run.recipe.seed}"
            progress.say(f"run {number} of {len(runs)}: {name}")
        try:
            run.carry_out(train, resume, progress)
        finally:
            report = write(experiment)
    return report
