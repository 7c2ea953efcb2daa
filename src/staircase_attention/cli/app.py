"""All commands, and how errors are reported: one line, a non-zero exit status, no traceback."""

import errno
import os
import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer

from staircase_attention.checks import one_line, printable
from staircase_attention.cli import INTERRUPTED, evaluate, experiments, runs, schedules, text
from staircase_attention.cli.prepare import prepare
from staircase_attention.files import FULL_DISK
from staircase_attention.references import line_in_own_code

# Exit status for what a user can get wrong.
USER_ERROR = 2
NO_MEMORY = (
    "this needs more memory than there is; use a smaller model, fewer lanes, shorter texts, or "
    "in training more num_micro_batches, or recompute"
)
# What to do about a file that the system refused.
REMEDIES = {
    **dict.fromkeys(FULL_DISK, "free some space and run this again"),
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), "use another folder, or a copy"),
}
# PyTorch's messages when a size exceeds memory or 64 bits.
OUT_OF_MEMORY = (
    "can't allocate memory",
    "not enough memory",
    "out of memory",
    "Storage size calculation overflowed",
    "Overflow when unpacking long",
)

# What typer raises for arguments it cannot parse; it has been in several packages over time.
UsageError: Any = typer.BadParameter.__bases__[0]

app = typer.Typer(name="staircase", no_args_is_help=True, rich_markup_mode=None)


def print_version(is_asked: bool) -> None:
    """Print the version and exit."""
    if is_asked:
        from importlib.metadata import version

        typer.echo(f"staircase-attention {version('staircase-attention')}")
        raise typer.Exit


@app.callback()
def staircase(
    *,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=print_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Recurrent attention models: draw, describe, train, compare, generate."""


# In the order of `staircase --help`.
COMMANDS: tuple[Callable[..., int | None], ...] = (
    *(experiments.demo, experiments.quickstart),
    *(schedules.play, schedules.draw, schedules.describe),
    *(runs.recipes, runs.train, runs.resume, evaluate.evaluate, evaluate.inspect),
    *(text.sample, text.chat, text.serve),
    *(experiments.compare, experiments.reproduce, experiments.suite),
    *(runs.pack, runs.export, experiments.estimate),
)
for command in COMMANDS:
    app.command("eval" if command is evaluate.evaluate else None)(command)
app.add_typer(prepare)


def run() -> None:
    """Run the command that the user typed, also with closed streams; exit with its status."""
    for name in ("stdin", "stdout", "stderr"):
        setattr(sys, name, getattr(sys, name) or open(os.devnull, "r+"))  # noqa: SIM115
    try:
        status = app(prog_name="staircase", standalone_mode=False)
    except UsageError as error:
        # It carries the whole help text, which must keep its lines.
        if type(error).__name__ == "NoArgsIsHelpError":
            typer.echo(error.format_message(), err=True)
            sys.exit(USER_ERROR)
        # Of a number that it could not read, typer's own error does not say what was typed.
        read: Any = getattr(error.__cause__, "errors", list)()
        message = error.format_message().rstrip(".")
        message += "".join(f", got {one['input']!r}" for one in read)
        fail(f"{message}; see {error.ctx.command_path} --help" if error.ctx else message)
    except (MemoryError, OverflowError):
        fail(NO_MEMORY)
    except typer.Abort:
        sys.exit(INTERRUPTED)
    except Exception as error:
        report(error)
    sys.exit(status if isinstance(status, int) else 0)


def report(error: Exception) -> None:
    """Report an error in one line, or raise it if it is a bug."""
    # A run that was asked to stop has saved itself, and knows its exit status.
    status = getattr(error, "exit_status", None)
    if status is not None:
        typer.echo(f"staircase: {error}", err=True)
        sys.exit(status)
    # An error class of ours, or of safetensors for a full disk, is for users; others may be bugs.
    is_ours = type(error).__module__.startswith(("staircase_attention.", "safetensors."))
    is_memory = not is_ours and any(words in str(error) for words in OUT_OF_MEMORY)
    is_known = is_ours or is_memory or isinstance(error, ValueError | TypeError | OSError)
    if os.environ.get("STAIRCASE_TRACEBACK") or not is_known:
        raise error
    if not (is_ours or is_memory) and (place := line_in_own_code(error)):
        fail(f"{one_line(error)}; in {place} (STAIRCASE_TRACEBACK=1 shows how it got there)")
    remedy = REMEDIES.get(error.errno or 0) if isinstance(error, OSError) else None
    fail(NO_MEMORY if is_memory else "; ".join(filter(None, (str(error), remedy))))


def fail(message: str) -> None:
    """Print one line and exit."""
    typer.echo(f"staircase: {printable(message)}", err=True)
    sys.exit(USER_ERROR)
