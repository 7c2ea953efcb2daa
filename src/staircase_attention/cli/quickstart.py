"""`staircase quickstart`: from files of text to a model and its samples."""

from pathlib import Path
from typing import Annotated

import typer

from staircase_attention.cli.arguments import Quiet
from staircase_attention.files import check_can_hold


def quickstart(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILE", help="text, Markdown, source code, .jsonl, or folder"),
    ],
    *,
    output: Annotated[Path, typer.Option(help="Folder for everything.")] = Path("quickstart"),
    minutes: Annotated[float, typer.Option(help="Time for everything.")] = 9.0,
    quiet: Quiet = False,
) -> int:
    """From text to a model: prepare, choose a size, train, sample."""
    check_can_hold(output, "--output")
    from staircase_attention.cli.prepare import progress
    from staircase_attention.cli.runs import show
    from staircase_attention.experiments.quickstart import Quickstart
    from staircase_attention.training import choose_display

    result, samples, share = Quickstart(
        files=files,
        folder=output,
        minutes=minutes,
        say=typer.echo,
        preparing=progress(quiet),
        training=choose_display(quiet=quiet),
    ).run()
    for row, sample in enumerate(samples):
        typer.echo(f"--- {row}\n{sample}")
    status = show(result, output / "run")
    typer.echo(f"{100 * share:.1f}% of the words in the samples occur in the text")
    typer.echo(f"curve: {output / 'curve.png'}; remove {output} to start again")
    typer.echo(f"more: staircase sample (or chat, eval, export) {output / 'run'}")
    return status
