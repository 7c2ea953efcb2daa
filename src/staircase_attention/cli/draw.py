"""`staircase draw`: the paper's Figure 1 for any timetable."""

from pathlib import Path
from typing import Annotated, cast

import typer

from staircase_attention.cli.arguments import ScheduleName, ScheduleOptions
from staircase_attention.cli.assignments import parse_assignments


def draw(
    schedule: ScheduleName,
    options: ScheduleOptions = None,
    *,
    tokens: Annotated[
        int | None,
        typer.Option(help="Length of the sequence; by default until the window is full."),
    ] = None,
    layers: Annotated[int | None, typer.Option(help="Layers of the core; AABB shows them.")] = None,
    order: Annotated[
        str, typer.Option(help="Walk by `window`, as in training, or by `chunk`, as in streaming.")
    ] = "window",
    output: Annotated[
        Path | None, typer.Option(help="Write an .svg or .png file instead of the terminal.")
    ] = None,
) -> None:
    """Draw what a model computes when."""
    from rich.console import Console

    from staircase_attention.drawing import picture, render_terminal, save_picture
    from staircase_attention.schedules import Order, make_schedule

    plan = make_schedule(schedule, parse_assignments(options or []))
    drawn = picture(plan, num_tokens=tokens, num_layers=layers, order=cast(Order, order))
    if output is None:
        Console().print(render_terminal(drawn))
    else:
        save_picture(drawn, output)
        typer.echo(f"wrote {output}")
