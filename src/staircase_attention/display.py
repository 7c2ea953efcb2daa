"""What a person sees of a run or a preparation: a bar in a terminal, plain lines elsewhere."""

import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from statistics import fmean

from rich import progress
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

# Bars of a curve: no height to a whole line, in eighths.
BLOCKS = " ▁▂▃▄▅▆▇█"


class Display:
    """What long work reports to whoever watches; this one shows nothing."""

    def begin(self, name: str, done: int, total: int) -> None:
        """Work starts or resumes: updates of a run, bytes of a preparation, which has no name."""

    def advance(self, done: int, **facts: float) -> None:
        """So much is done; facts are the latest loss, error and speed, or counts so far."""

    def say(self, text: str) -> None:
        """A message."""

    def end(self) -> None:
        """The work is finished, or stops."""


def clock(seconds: float) -> str:
    """Seconds as minutes or hours.

    >>> clock(125), clock(3725)
    ('02:05', '1:02:05')
    """
    whole = round(seconds)
    minutes = f"{whole // 60 % 60:02d}:{whole % 60:02d}"
    return f"{whole // 3600}:{minutes}" if whole >= 3600 else minutes  # noqa: PLR2004


def counted(count: int, things: str) -> str:
    """A number of things.

    >>> counted(1, "documents"), counted(2_000, "tokens")
    ('1 document', '2,000 tokens')
    """
    return f"{count:,} {things.removesuffix('s') if count == 1 else things}"


def words(facts: Mapping[str, float]) -> str:
    """Facts as they are shown.

    >>> words({"loss": 1.5, "error": 0.25, "tokens_per_second": 12345.6})
    'loss 1.5000  error 25.00%  12,346 tokens/s'
    >>> words({"documents": 1, "tokens": 2_000})
    '1 document  2,000 tokens'
    """
    shown = []
    for name, value in facts.items():
        if name.endswith("error"):
            shown.append(f"{name.replace('_', ' ')} {100 * value:.2f}%")
        elif name == "bits":
            shown.append(f"bits per token {value:.4f}")
        elif name == "tokens_per_second":
            shown.append(f"{value:,.0f} tokens/s")
        elif isinstance(value, int):
            shown.append(counted(value, name))
        else:
            shown.append(f"{name.replace('_', ' ')} {value:.4f}")
    return "  ".join(shown)


def sketch(losses: Mapping[int, float], *, width: int = 60, height: int = 6) -> str:
    """Losses by update as bars, the mean of all in a column, from the lowest to the highest.

    A column without losses repeats the one before it.

    >>> print(sketch({1: 4.0, 2: 3.0, 3: 2.0, 4: 0.0}, width=4, height=2))
    4.0000 █▄▁
    0.0000 ███▁
           1  4
    """
    first, last = min(losses), max(losses)
    columns = defaultdict[int, list[float]](list)
    for update, loss in losses.items():
        columns[(update - first) * (width - 1) // max(last - first, 1)].append(loss)
    means = [fmean(columns[max(at for at in columns if at <= one)]) for one in range(width)]
    low, high = min(means), max(means)
    levels = [1 + round((mean - low) / ((high - low) or 1) * (8 * height - 1)) for mean in means]
    labels = {height - 1: f"{high:.4f}", 0: f"{low:.4f}"}
    margin, lines = max(map(len, labels.values())), []
    for row in reversed(range(height)):
        bars = "".join(BLOCKS[min(max(level - 8 * row, 0), 8)] for level in levels)
        lines.append(f"{labels.get(row, ''):>{margin}} {bars}".rstrip())
    begin = f"{first:,} "
    return "\n".join([*lines, f"{'':{margin}} {begin}{f'{last:,}'.rjust(width - len(begin))}"])


def plain_console(*, stderr: bool = False) -> Console:
    """A console that prints names and tokens as they are, brackets and colons included."""
    return Console(stderr=stderr, markup=False, emoji=False)


def print_table(table: Table) -> None:
    """Print a table without cutting its words; in a narrow terminal its lines break instead."""
    console = plain_console()
    needed = console.measure(table, options=console.options.update(max_width=1000))
    if needed.minimum > console.width:
        console.width = needed.maximum
    console.print(table)


class CurveProgress(progress.Progress):
    """A progress bar, and below it the latest facts and the curve of the losses so far."""

    facts: Mapping[str, float] = {}
    losses: Mapping[int, float] = {}

    def get_renderables(self) -> Iterable[RenderableType]:
        """The bar, the facts, and the curve once it has a shape."""
        yield from super().get_renderables()
        if self.facts:
            yield Text(words(self.facts))
        if len(self.losses) > 2:  # noqa: PLR2004
            yield Text(sketch(self.losses))


class Terminal(Display):
    """A progress bar with the latest facts and the time left, and the curve of a run."""

    def __init__(self) -> None:
        self._progress = CurveProgress(
            progress.TextColumn("{task.description}", markup=False),
            progress.BarColumn(bar_width=None),
            progress.TextColumn("{task.completed:,.0f}/{task.total:,.0f}"),
            progress.TimeRemainingColumn(),
            console=plain_console(stderr=True),
        )
        self._progress.facts = self._facts = dict[str, float]()
        self._progress.losses = self._losses = dict[int, float]()

    def begin(self, name: str, done: int, total: int) -> None:
        """Show the bar, in place of one of before."""
        for bar in self._progress.task_ids:
            self._progress.remove_task(bar)
        self._bar = self._progress.add_task(name, total=total, completed=done)
        self._progress.start()

    def advance(self, done: int, **facts: float) -> None:
        """Move the bar."""
        self._facts |= facts
        if "loss" in facts:
            self._losses[done] = facts["loss"]
        self._progress.update(self._bar, completed=done)

    def say(self, text: str) -> None:
        """Print above the bar."""
        self._progress.console.print(text, highlight=False, soft_wrap=True)

    def end(self) -> None:
        """Leave the bar on the screen."""
        self._progress.stop()


class Lines(Display):
    """A plain line every few seconds, for logs and pipes."""

    def __init__(self, *, every_seconds: float = 10.0) -> None:
        self._every = every_seconds
        self._facts: dict[str, float] = {}

    def begin(self, name: str, done: int, total: int) -> None:
        """Print a run's name and how far it is."""
        self._name, self._total = name, total
        self._first = self._done = done
        self._began = self._last = time.monotonic()
        if name:
            self.say(self._place())

    def advance(self, done: int, **facts: float) -> None:
        """Print a line, unless the last one is recent."""
        self._facts |= facts
        self._done = done
        if time.monotonic() - self._last >= self._every:
            self._print()

    def _place(self) -> str:
        if self._name:
            return f"{self._name}: update {self._done:,} of {self._total:,}"
        # Rounded down: 100% is all of it.
        return f"{1000 * self._done // max(self._total, 1) / 10}%"

    def _print(self) -> None:
        self._last = time.monotonic()
        parts, num_new = [self._place(), words(self._facts)], self._done - self._first
        # Since this process began: a resumed run may be on another machine, and a preparation first
        # reads again what it has read before. A rollback may lead to before that.
        if num_new > 0:
            seconds = (self._last - self._began) / num_new * (self._total - self._done)
            parts.append(f"{clock(seconds)} left")
        self.say("  ".join(filter(None, parts)))

    def say(self, text: str) -> None:
        """Print a message."""
        # Standard output is for results. A log is followed while it grows, so nothing is buffered.
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()

    def end(self) -> None:
        """Print the last facts."""
        if self._facts:
            self._print()


def choose_display(*, quiet: bool = False, has_bar: bool = True) -> Display:
    """A progress bar in a terminal, plain lines elsewhere."""
    if quiet:
        return Display()
    return Terminal() if has_bar and sys.stderr.isatty() else Lines()
