"""`staircase demo`, `quickstart`, `compare`, `reproduce`, `suite`, `estimate`: runs and reports."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.table import Column, Table

from staircase_attention import drawing, experiments, training
from staircase_attention.checks import input_error
from staircase_attention.cli import arguments
from staircase_attention.display import choose_display, counted, plain_console, print_table
from staircase_attention.files import check_can_hold

DEMO_RECIPES = ("parity/staircase", "parity/transformer-xl")
INTRODUCTION = """\
Parity: at each of 24 steps a bit comes in, and the answer is whether the ones so far are odd.
A Staircase and a Transformer-XL of the same size get the same updates on the same data.
"""
Seeds = Annotated[int, typer.Option(help="Runs per row, with consecutive seeds.")]
FirstSeed = Annotated[int, typer.Option(help="First seed, to divide runs among machines.")]
Jobs = Annotated[int, typer.Option(help="Runs at a time, each a process of its own.")]
Processes = Annotated[int, typer.Option(help="Processes (GPUs) per run, started by torchrun.")]
Output = Annotated[Path, typer.Option(help="Folder of runs and report.")]
Variations = Annotated[
    list[str] | None,
    typer.Option(
        metavar="PATH=V1,V2,...", help="Vary a setting; if repeated, every combination is run."
    ),
]
Lengths = Annotated[
    list[int] | None,
    typer.Option(metavar="N", help="Also evaluate at this episode length; may be repeated."),
]


def demo(*, seeds: Seeds = 1, output: Output = Path("demo")) -> int:
    """Train two small models on parity and compare them."""
    console = plain_console()
    chosen = [experiments.find_recipe(name) for name in DEMO_RECIPES]
    console.print(INTRODUCTION)
    for recipe in chosen:
        assert isinstance(recipe.model, training.FamilyModel)
        picture = drawing.picture(recipe.model.schedule, num_tokens=10)
        console.print(drawing.TerminalPicture(picture))
        console.print()
    # These models are too small for two threads to help.
    report = experiments.compare(
        chosen, folder=output, seeds=seeds, title="Parity over 24 steps", threads=1, progress=True
    )
    status = show_report(report)
    typer.echo(f"Remove {output} to train again.")
    return status


def quickstart(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILE", help="text, Markdown, source code, .jsonl, or folder"),
    ],
    *,
    output: Annotated[Path, typer.Option(help="Folder for everything.")] = Path("quickstart"),
    minutes: Annotated[float, typer.Option(help="Time for everything.")] = 9.0,
    quiet: arguments.Quiet = False,
) -> int:
    """From text to a model: prepare, choose a size, train, sample."""
    check_can_hold(output, "--output")
    from staircase_attention.cli.runs import show
    from staircase_attention.experiments.quickstart import Quickstart

    result, samples = Quickstart(
        files=files,
        folder=output,
        minutes=minutes,
        say=typer.echo,
        preparing=choose_display(quiet=quiet, has_bar=False),
        training=choose_display(quiet=quiet),
    ).run()
    for row, sample in enumerate(samples):
        typer.echo(f"--- {row}\n{sample}")
    status = show(result, output / "run", with_page=not quiet)
    typer.echo(f"more: staircase sample (or chat, eval, export) {output / 'run'}")
    typer.echo(f"Remove {output} to start again.")
    return status


def compare(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="RECIPE... [PATH=VALUE]...",
            help="some of `staircase recipes` or JSON files, and settings to change in all of them",
        ),
    ],
    *,
    vary: Variations = None,
    seeds: Seeds = 1,
    first_seed: FirstSeed = 0,
    jobs: Jobs = 1,
    processes: Processes = 1,
    output: Output = Path("results/comparison"),
    title: Annotated[str, typer.Option(help="Title of the report.")] = "A comparison",
    length: Lengths = None,
    quiet: arguments.Quiet = False,
) -> int:
    """Train recipes side by side, and write a report."""
    report = experiments.compare(
        chosen_recipes(words, vary or []),
        folder=output,
        seeds=seeds,
        first_seed=first_seed,
        jobs=jobs,
        processes=processes,
        title=title,
        lengths=length or (),
        progress=not quiet,
    )
    return show_report(report)


def chosen_recipes(words: Sequence[str], vary: Sequence[str]) -> "list[training.Recipe]":
    """The named recipes, with the given settings and every combination of the varied ones."""
    from staircase_attention.experiments.comparisons import check_settings

    settings = arguments.parse_assignments(word for word in words if "=" in word)
    varied = arguments.parse_assignments(vary, arguments.parse_values)
    check_settings(settings)
    for path in settings:
        for other in varied:
            # With dots, so that model.width is inside model and num_lanes not inside num_lane.
            if f"{path}.".startswith(f"{other}."):
                rule = "a setting is either given or varied"
                raise input_error(rule, f"{path} given and {other} varied", "leave one of them out")
    named = [experiments.find_recipe(word).override(settings) for word in words if "=" not in word]
    return [variation for recipe in named for variation in experiments.variations(recipe, varied)]


def reproduce(
    table: Annotated[
        str,
        typer.Argument(
            metavar="TABLE",
            help="random-walk, algorithm, enwik8, permutations (or -fast), words, words-episodic",
        ),
    ],
    overrides: arguments.Overrides = None,
    *,
    rows: Annotated[
        str | None, typer.Option(help="Rows, separated by commas; all by default.")
    ] = None,
    seeds: Seeds = 10,
    first_seed: FirstSeed = 0,
    updates: Annotated[
        int | None, typer.Option(help="Updates per run; the paper's number by default.")
    ] = None,
    jobs: Jobs = 1,
    processes: Processes = 1,
    output: Annotated[
        Path | None, typer.Option(help="Folder of runs and report; results/TABLE by default.")
    ] = None,
    length: Lengths = None,
    quiet: arguments.Quiet = False,
) -> int:
    """Run rows of a table of the paper, and write a report."""
    report = experiments.reproduce(
        table,
        folder=output or Path("results") / table,
        rows=names(rows),
        seeds=seeds,
        first_seed=first_seed,
        updates=updates,
        jobs=jobs,
        processes=processes,
        overrides=arguments.parse_assignments(overrides or []),
        lengths=length or (),
        progress=not quiet,
    )
    return show_report(report)


def names(words: str | None) -> list[str] | None:
    """Names separated by commas."""
    return None if words is None else [word.strip() for word in words.split(",")]


def suite(
    overrides: arguments.Overrides = None,
    *,
    small: Annotated[
        bool, typer.Option("--small", help="Smaller models: an hour on two CPU cores.")
    ] = False,
    tasks: Annotated[str | None, typer.Option(help="Tasks, separated by commas.")] = None,
    models: Annotated[str | None, typer.Option(help="Models, separated by commas.")] = None,
    own: Annotated[
        list[str] | None,
        typer.Option(
            metavar="RECIPE|PATH=VALUE",
            help="Add your own model: a recipe, or the Staircase with some settings changed, "
            "as model.core.reference=block.py:Block; may be repeated.",
        ),
    ] = None,
    seeds: Seeds = 1,
    first_seed: FirstSeed = 0,
    jobs: Annotated[int | None, typer.Option(help="Runs at a time; 1, with --small 2.")] = None,
    output: Annotated[Path | None, typer.Option(help="Folder; under results by default.")] = None,
    show: Annotated[bool, typer.Option("--show", help="Only print episodes of the tasks.")] = False,
    quiet: arguments.Quiet = False,
) -> int:
    """Train models on the suite's tasks; score longer strings too."""
    from staircase_attention.experiments import suite as whole

    chosen_tasks = names(tasks) or []
    if show:
        for name, text in whole.episodes(chosen_tasks):
            typer.echo(f"{name}: {text}")
        return 0
    named = [word for word in own or [] if "=" not in word]
    if len(named) > 1:
        raise input_error("--own takes one recipe", ", ".join(named), "run the suite for each")
    budget = whole.SMALL if small else whole.FULL
    recipes = whole.suite_recipes(
        budget,
        tasks=chosen_tasks,
        models=names(models) or [],
        own_recipe=named[0] if named else None,
        own=arguments.parse_assignments(word for word in own or [] if "=" in word),
        overrides=arguments.parse_assignments(overrides or []),
    )
    folder = output or Path("results") / budget.training
    options: dict[str, Any] = {"seeds": seeds, "first_seed": first_seed, "jobs": jobs}
    cells = whole.run_suite(recipes, budget, folder=folder, progress=not quiet, **options)
    rows = whole.score_table(cells)
    shown = [name for name in rows[0] if name != "Class"]
    columns = [Column(name.replace(" ", "\n"), no_wrap=True) for name in shown]
    grid = Table(*columns, box=box.SIMPLE_HEAD, caption="% right at trained / longer lengths")
    for row in rows:
        grid.add_row(*(row[name] for name in shown))
    print_table(grid)
    for task, by_model in cells.items():
        for model, cell in by_model.items():
            if cell["failure"]:
                typer.echo(f"{task}, {model}: failed ({cell['failure']}); the next call retries")
    typer.echo(f"wrote {folder / 'report.html'}, suite.json")
    states = {cell["status"] for row in cells.values() for cell in row.values()}
    return 0 if states == {"finished"} else 1


def show_report(report: "experiments.Report") -> int:
    """Print a report for the screen; a run that failed, diverged or has not ended is a failure."""
    from staircase_attention.experiments.report import orders, screen_table, troubles

    print_table(screen_table(report))
    console = plain_console()
    for line in [*orders(report.rows), *troubles(report.rows)]:
        console.print(line, highlight=False, soft_wrap=True)
    typer.echo(f"wrote {report.folder / 'report.html'}")
    wanted = [run for row in report.rows if row.is_wanted for run in row.runs]
    unfinished = any(run.status == "unfinished" for run in wanted)
    return 1 if report.failures or unfinished else 0


def estimate(
    recipe: arguments.RecipeName,
    overrides: arguments.Overrides = None,
    *,
    gpus: Annotated[int, typer.Option(help="Number of GPUs.")] = 1,
    nodes: Annotated[int | None, typer.Option(help="Nodes; by default 8 GPUs in each.")] = None,
    price: Annotated[float | None, typer.Option(help="Price of one GPU per hour.")] = None,
    as_json: arguments.AsJson = False,
) -> None:
    """Estimate memory, time and cost of a run on H200s."""
    from staircase_attention.experiments.estimate import Machine
    from staircase_attention.experiments.estimate import estimate as estimate_recipe

    chosen = experiments.find_recipe(recipe).override(arguments.parse_assignments(overrides or []))
    nodes = -(-gpus // 8) if nodes is None else nodes
    found = estimate_recipe(chosen, num_gpus=gpus, num_nodes=nodes, price=price or 0.0)
    if as_json:
        typer.echo(json.dumps(found, indent=2))
        return
    training, machine = chosen.training, Machine()
    fits = "" if found["memory_bytes"] < machine.memory else ", TOO MUCH: see training.recompute"
    cost = "" if price is None else f", cost {found['cost']:,.2f}"
    held = "the whole model in every GPU; captured updates"
    if training.parallel != "ddp":
        held = "weights gathered once per update; updates that are not captured"
    typer.echo(f"""\
{found["num_parameters"] / 1e6:,.1f}M parameters, {training.precision}, \
{training.num_lanes // gpus} x {training.segment_length} tokens per GPU and update
memory per GPU   {found["memory_bytes"] / 2**30:.1f} of {machine.memory / 2**30:.0f} GiB{fits}
                 {shares(found["memory"])}
time per update  {1e3 * found["update_seconds"]:.1f} ms, {found["tokens_per_second"]:,.0f} tokens \
per second, {100 * found["share_of_peak"]:.0f}% of the peak
                 {shares(found["seconds"])}
bound by         {shares(found["bounds"])}
whole run        {found["hours"]:,.2f} hours for {training.num_updates:,} updates, \
{found["gpu_hours"]:,.2f} GPU hours{cost}
assumed          {gpus} {machine.name} in {counted(nodes, "nodes")}; per GPU \
{machine.flops / 1e12:.0f} TFLOP/s in bfloat16, {machine.float32_flops / 1e12:.0f} in float32, \
{machine.bandwidth / 1e12:.1f} TB/s; links {machine.nvlink / 1e9:.0f} GB/s in a node, \
{machine.network / 1e9:.0f} GB/s per GPU between nodes, \
{100 * machine.link_share:.0f}% of it reached; {held}; no validation, no checkpoints""")


def shares(parts: Mapping[str, float]) -> str:
    """Each part in percent, largest first."""
    total = sum(parts.values())
    ordered = sorted(parts.items(), key=lambda part: -part[1])
    return ", ".join(f"{name} {100 * value / total:.0f}%" for name, value in ordered)
