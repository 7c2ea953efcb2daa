"""`staircase describe`: what a model costs."""

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from staircase_attention.checks import check_choice
from staircase_attention.cli.arguments import AsJson, ScheduleName, ScheduleOptions
from staircase_attention.cli.assignments import parse_assignments
from staircase_attention.schedules import Schedule, make_schedule

if TYPE_CHECKING:
    from rich.table import Table

    from staircase_attention.models import Cost

BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
"""Bytes per number."""


def describe(
    schedule: ScheduleName,
    options: ScheduleOptions = None,
    *,
    width: Annotated[int, typer.Option(help="Width of the model.")] = 512,
    num_layers: Annotated[int, typer.Option(help="Layers of the core.")] = 8,
    num_heads: Annotated[int, typer.Option(help="Attention heads per layer.")] = 8,
    feed_forward_width: Annotated[
        int | None, typer.Option(help="Width of the feed-forward sublayer; 4 x width by default.")
    ] = None,
    positions: Annotated[str, typer.Option(help="`relative` or `rotary`.")] = "relative",
    max_distance: Annotated[
        int | None, typer.Option(help="Rows of the relative table; by default the schedule's.")
    ] = None,
    vocab_size: Annotated[int, typer.Option(help="Input vocabulary.")] = 256,
    output_size: Annotated[
        int | None, typer.Option(help="Output vocabulary, if it differs.")
    ] = None,
    segment: Annotated[int, typer.Option(help="Tokens per update and lane.")] = 256,
    dtype: Annotated[str, typer.Option(help=f"One of {', '.join(BYTES)}.")] = "float32",
    as_json: AsJson = False,
) -> None:
    """Show what a model costs: parameters, FLOPs, steps, state."""
    plan = make_schedule(schedule, parse_assignments(options or []))
    check_choice("--dtype", dtype, BYTES)
    from staircase_attention.layers import CoreConfig
    from staircase_attention.models import measure_cost

    core = CoreConfig(
        width=width,
        num_layers=num_layers,
        num_heads=num_heads,
        feed_forward_width=feed_forward_width,
        positions=positions,  # type: ignore[arg-type]
        max_distance=max_distance,
    )
    plan.check_core(num_layers=num_layers)
    cost = measure_cost(
        vocab_size=vocab_size, core=core, schedule=plan, segment=segment, output_size=output_size
    )
    if as_json:
        typer.echo(json.dumps(facts(plan, cost, BYTES[dtype]), indent=2))
    else:
        from rich.console import Console

        Console().print(table(plan, cost, dtype))


def facts(plan: Schedule, cost: "Cost", size: int) -> dict[str, Any]:
    """The cost as plain data."""
    return {
        "schedule": plan.to_dict(),
        "num_parameters": cost.num_parameters,
        "segment": cost.segment,
        "segment_start": cost.start,
        "forward_flops_per_token": cost.flops_per_token,
        "sequential_steps_per_segment": cost.per_segment.num_steps,
        "sequential_layers_per_segment": cost.per_segment.num_core_layers,
        "state_bytes": cost.per_segment.state_numbers * size,
        "most_state_bytes": cost.per_segment.most_state_numbers * size,
        "is_state_bounded": plan.is_state_bounded,
        "paper": asdict(plan.paper_row),
    }


def table(plan: Schedule, cost: "Cost", dtype: str) -> "Table":
    """The cost as a table."""
    from rich.table import Table

    known = facts(plan, cost, BYTES[dtype])
    row = plan.paper_row
    after = f"after {known['segment_start'] + known['segment']:,} tokens"
    most = f"at most {known['most_state_bytes']:,}" if plan.is_state_bounded else "it grows"
    grid = Table(title=repr(plan), title_justify="left", show_header=False, box=None)
    grid.add_column(style="bold")
    grid.add_column(justify="right")
    grid.add_column(style="dim")
    grid.add_row("parameters", f"{cost.num_parameters:,}", f"{cost.num_parameters / 1e6:.1f}M")
    grid.add_row("forward FLOPs per token", f"{cost.flops_per_token:,.0f}", "training: about 3x")
    grid.add_row(
        "sequential steps per segment",
        f"{known['sequential_steps_per_segment']:,}",
        f"{known['sequential_layers_per_segment']:,} layers, {cost.segment:,} tokens",
    )
    grid.add_row("state bytes per stream", f"{known['state_bytes']:,}", f"{dtype}, {after}; {most}")
    grid.add_row("paper: recurrent steps", dash(row.recurrent_steps), "")
    grid.add_row("paper: step size", dash(row.step_size), "")
    grid.add_row("paper: forward size", dash(row.forward_size), "")
    return grid


def dash(number: int | None) -> str:
    """A number, or the dash that the paper prints for none."""
    return "-" if number is None else f"{number:,}"
