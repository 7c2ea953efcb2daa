"""The entry point, and what becomes of a mistake: one line, a non-zero exit, no traceback."""

import os
import sys
from typing import Any

import typer

from staircase_attention.cli.bench import bench
from staircase_attention.cli.compare import compare
from staircase_attention.cli.demo import demo
from staircase_attention.cli.describe import describe
from staircase_attention.cli.draw import draw
from staircase_attention.cli.evaluate import evaluate
from staircase_attention.cli.export import export
from staircase_attention.cli.pack import pack
from staircase_attention.cli.prepare import prepare
from staircase_attention.cli.recipes import recipes
from staircase_attention.cli.reproduce import reproduce
from staircase_attention.cli.sample import chat, sample
from staircase_attention.cli.train import resume, train
from staircase_attention.training import StopRequested

FAILURE = 2
"""Exit status for what a user can get wrong."""
INTERRUPTED = 130
"""Exit status after Ctrl-C."""

UsageError: Any = typer.BadParameter.__bases__[0]
"""What typer raises for arguments it cannot read; it has been in several packages over time."""

app = typer.Typer(
    name="staircase",
    help="Recurrent attention models: draw, cost, train, compare, write.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)
for command in (
    draw,
    describe,
    recipes,
    train,
    resume,
    reproduce,
    sample,
    chat,
    export,
    demo,
    pack,
):
    app.command()(command)
app.command()(bench)
app.command()(compare)
app.command("eval")(evaluate)
app.add_typer(prepare)


def main() -> None:
    """Run a command of the user's."""
    try:
        status = app(standalone_mode=False)
    except UsageError as error:
        _fail(error.format_message())
    except (ValueError, TypeError, OSError) as error:
        if os.environ.get("STAIRCASE_TRACEBACK"):
            raise
        _fail(str(error))
    except StopRequested as stop:
        typer.echo(f"staircase: {stop}", err=True)
        sys.exit(stop.exit_status)
    except MemoryError:
        _fail("this needs more memory than there is; ask for less")
    except (KeyboardInterrupt, typer.Abort):
        sys.exit(INTERRUPTED)
    sys.exit(status if isinstance(status, int) else 0)


def _fail(message: str) -> None:
    line = " ".join(message.split())
    typer.echo(f"staircase: {line}", err=True)
    sys.exit(FAILURE)
