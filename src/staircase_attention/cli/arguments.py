"""Arguments that several commands take."""

from pathlib import Path
from typing import Annotated

import typer

from staircase_attention.schedules import SCHEDULES

ScheduleName = Annotated[
    str, typer.Argument(metavar="SCHEDULE", help=f"one of {', '.join(SCHEDULES)}")
]
ScheduleOptions = Annotated[
    list[str] | None,
    typer.Argument(metavar="[NAME=VALUE]...", help="its options, as chunk_size=64 num_passes=4"),
]

RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="a run folder")]
TrainedRun = Annotated[
    Path, typer.Argument(metavar="RUN", help="a run folder, packed or not, or pretrained:NAME")
]
Lengths = Annotated[
    list[int] | None,
    typer.Option(help="Length of test episodes to score besides; may be given repeatedly."),
]
