"""`staircase draw`, `describe` and `play`: what is computed when, what it costs, and a page."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from rich.table import Table

from staircase_attention import drawing
from staircase_attention.checks import check_choice
from staircase_attention.cli import arguments
from staircase_attention.display import counted, plain_console
from staircase_attention.references import check_options
from staircase_attention.schedules import Order, Schedule, make_schedule

# Bytes per number.
BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}


def draw(
    schedule: arguments.ScheduleName,
    options: arguments.ScheduleOptions = None,
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
    """Draw the timetable of a schedule."""
    plan = make_schedule(schedule, arguments.parse_assignments(options or []))
    drawn = drawing.picture(plan, num_tokens=tokens, num_layers=layers, order=cast(Order, order))
    if output is None:
        plain_console().print(drawing.TerminalPicture(drawn))
    else:
        drawing.save_picture(drawn, output)
        typer.echo(f"wrote {output}")


def describe(
    schedule: arguments.ScheduleName,
    options: arguments.ScheduleOptions = None,
    *,
    width: Annotated[int, typer.Option(help="Width of the model.")] = 512,
    num_layers: Annotated[int, typer.Option(help="Layers of the core.")] = 8,
    num_heads: Annotated[int, typer.Option(help="Attention heads per layer.")] = 8,
    settings: Annotated[
        list[str] | None,
        typer.Option("--core", help="Another setting of the core, such as norm=rms; repeatable."),
    ] = None,
    vocab_size: Annotated[int, typer.Option(help="Input vocabulary.")] = 256,
    output_size: Annotated[
        int | None, typer.Option(help="Output vocabulary, if it differs.")
    ] = None,
    segment: Annotated[int, typer.Option(help="Tokens per update and lane.")] = 256,
    dtype: Annotated[str, typer.Option(help=f"One of {', '.join(BYTES)}.")] = "float32",
    passes: arguments.Passes = None,
    as_json: arguments.AsJson = False,
) -> None:
    """Show what a model costs: parameters, FLOPs, steps, state."""
    depths = arguments.parse_passes(passes)
    given = arguments.parse_assignments(options or [])
    plan = make_schedule(schedule, given | ({"num_passes": depths[0]} if depths else {}))
    check_choice("--dtype", dtype, BYTES)
    from staircase_attention.layers import CoreConfig

    shape: dict[str, Any] = {"width": width, "num_layers": num_layers, "num_heads": num_heads}
    shape |= arguments.parse_assignments(settings or [])
    check_options("--core", CoreConfig, shape)
    core = CoreConfig(**shape)
    plan.check_core(num_layers=core.num_layers)
    sizes = {"vocab_size": vocab_size, "output_size": output_size, "segment": segment}
    plans = [plan.with_passes(depth) for depth in depths] or [plan]
    found = [costs(one, dtype, core=core, **sizes) for one in plans]
    if as_json:
        typer.echo(json.dumps(found if depths else found[0], indent=2))
    else:
        for one, facts in zip(plans, found, strict=True):
            print_costs(one, facts, dtype)


def costs(plan: Schedule, dtype: str, **sizes: Any) -> dict[str, Any]:  # noqa: ANN401
    """What a model of these sizes costs, as plain data."""
    from staircase_attention.models import measure_cost

    cost = measure_cost(schedule=plan, **sizes)
    return {
        "schedule": plan.to_dict(),
        "num_parameters": cost.num_parameters,
        "segment": cost.segment,
        "segment_start": cost.start,
        "forward_flops_per_token": cost.flops / cost.segment,
        "sequential_steps_per_segment": cost.num_steps,
        "sequential_layers_per_segment": sum(step.num_layers for step in cost.steps),
        "state_bytes": cost.state_numbers * BYTES[dtype],
        "most_state_bytes": cost.most_state_numbers * BYTES[dtype],
        "is_state_bounded": plan.is_state_bounded,
        "paper": asdict(plan.paper_row),
    }


def print_costs(plan: Schedule, facts: dict[str, Any], dtype: str) -> None:
    """Print the costs of a model as a table."""
    end = counted(facts["segment_start"] + facts["segment"], "tokens")
    most = f"at most {facts['most_state_bytes']:,}" if plan.is_state_bounded else "it grows"
    layers = counted(facts["sequential_layers_per_segment"], "layers")
    layers += f", {counted(facts['segment'], 'tokens')}"
    rows = [
        ("parameters", facts["num_parameters"], f"{facts['num_parameters'] / 1e6:.1f}M"),
        ("forward FLOPs per token", facts["forward_flops_per_token"], "training: about 3x"),
        ("sequential steps per segment", facts["sequential_steps_per_segment"], layers),
        ("state bytes per stream", facts["state_bytes"], f"{dtype}, after {end}; {most}"),
        *((f"paper: {name.replace('_', ' ')}", size, "") for name, size in facts["paper"].items()),
    ]
    grid = Table(title=repr(plan), title_justify="left", show_header=False, box=None)
    grid.add_column(style="bold")
    grid.add_column(justify="right")
    grid.add_column(style="dim")
    for name, number, remark in rows:
        # The paper prints a dash where a model has no such number.
        grid.add_row(name, "-" if number is None else f"{number:,.0f}", remark)
    plain_console().print(grid)


def play(
    *,
    output: Annotated[
        Path | None, typer.Option(help="Write the page to this folder, for any web host.")
    ] = None,
    port: Annotated[int, typer.Option(help="Port on this machine; 0 takes a free one.")] = 8000,
    browser: Annotated[bool, typer.Option(help="Open a browser.")] = True,
) -> None:
    """Open a page that shows schedules and runs the shipped models."""
    from staircase_attention.play import serve_page, write_page

    if output is not None:
        typer.echo(f"wrote {output}, {write_page(output) / 1e6:.1f} MB")
        return
    serve_page(port, opens_browser=browser, tell=typer.echo)
