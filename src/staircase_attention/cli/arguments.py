"""Arguments that several commands take."""

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
