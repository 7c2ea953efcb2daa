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
from staircase_attention.training.learner import NoRoomError

FAILURE = 2
"""Exit status for what a user can get wrong."""
INTERRUPTED = 130
"""Exit status after Ctrl-C."""
NO_MEMORY = (
    "this needs more memory than there is; ask for less: a smaller model, or in training fewer "
    "lanes, more training.num_micro_batches, or training.recompute"
)
TOO_LARGE = (
    "can't allocate memory",
    "not enough memory",
    "out of memory",
    "Storage size calculation overflowed",
    "Overflow when unpacking long",
)
"""What torch says when something has no room, in memory or in 64 bits."""

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
        if type(error).__name__ == "NoArgsIsHelpError":
            typer.echo(error.format_message(), err=True)
            sys.exit(FAILURE)
        _fail(error.format_message())
    except (ValueError, TypeError, OSError, RuntimeError) as error:
        is_ours = isinstance(error, NoRoomError)
        is_too_large = not is_ours and any(words in str(error) for words in TOO_LARGE)
        is_known = is_ours or is_too_large or not isinstance(error, RuntimeError)
        if os.environ.get("STAIRCASE_TRACEBACK") or not is_known:
            raise
        _fail(NO_MEMORY if is_too_large else str(error))
    except StopRequested as stop:
        typer.echo(f"staircase: {stop}", err=True)
        sys.exit(stop.exit_status)
    except MemoryError:
        _fail(NO_MEMORY)
    except (KeyboardInterrupt, typer.Abort):
        sys.exit(INTERRUPTED)
    sys.exit(status if isinstance(status, int) else 0)


def _fail(message: str) -> None:
    line = " ".join(message.split())
    typer.echo(f"staircase: {line}", err=True)
    sys.exit(FAILURE)
