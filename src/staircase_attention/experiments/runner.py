"""Carrying out an experiment: what is not done yet, one run after another."""

from staircase_attention.experiments.experiment import Experiment
from staircase_attention.experiments.planned_run import Resume, Train
from staircase_attention.experiments.report import Report, write_report
from staircase_attention.training import Display


def carry_out(
    experiment: Experiment, *, train: Train, resume: Resume, progress: Display | None
) -> Report:
    """Do what is not done yet; the report is written anew after every run, stopped ones included.

    Runs that have a result are left as they are, unfinished and failed ones are taken up again.
    """
    experiment.check()
    report = write_report(experiment)
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
            report = write_report(experiment)
    return report
