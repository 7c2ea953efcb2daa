"""Arguments and options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

from staircase_attention.schedules import SCHEDULES


def complete_schedules(start: str) -> list[str]:
    """The schedules whose names start like this."""
    return [name for name in SCHEDULES if name.startswith(start)]


def complete_recipes(start: str) -> list[str]:
    """The recipes whose names start like this."""
    from staircase_attention.experiments import recipes

    return [name for name in recipes() if name.startswith(start)]


ScheduleName = Annotated[
    str,
    typer.Argument(
        metavar="SCHEDULE",
        help=f"one of {', '.join(SCHEDULES)}, or FILE.py:CLASS",
        autocompletion=complete_schedules,
    ),
]
ScheduleOptions = Annotated[
    list[str] | None,
    typer.Argument(metavar="NAME=VALUE", help="its options, as chunk_size=64 num_passes=4"),
]
RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="run folder")]
TrainedRun = Annotated[
    Path, typer.Argument(metavar="RUN", help="run folder, packed run, or pretrained:NAME")
]
NewFolder = Annotated[Path, typer.Argument(metavar="FOLDER", help="output folder; must not exist")]
Lengths = Annotated[
    list[int] | None,
    typer.Option(metavar="N", help="Also evaluate at this episode length; may be repeated."),
]
CheckpointName = Annotated[
    str, typer.Option(help="`best` on the validation data, `latest`, or an update.")
]
TrustCode = Annotated[
    bool,
    typer.Option("--trust-code", help="Run code that the run folder names, whoever wrote it."),
]
Quiet = Annotated[bool, typer.Option("--quiet", help="Show no progress.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
