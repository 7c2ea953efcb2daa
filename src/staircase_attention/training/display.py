"""What a person sees during a run: a progress bar in a terminal, plain lines elsewhere."""

import sys
import time

from rich import progress
from rich.console import Console

from staircase_attention.clock import clock


class Display:
    """What the trainer reports to whoever watches; this one shows nothing."""

    def begin(self, name: str, update: int, num_updates: int) -> None:
        """A run starts or resumes."""

    def advance(self, update: int, **facts: float) -> None:
        """An update is done; facts are the latest loss, error and tokens per second."""

    def say(self, text: str) -> None:
        """A message."""

    def end(self) -> None:
        """The run is finished, or stops."""


def words(facts: dict[str, float]) -> str:
    """Facts as they are shown.

    >>> words({"loss": 1.5, "error": 0.25, "tokens_per_second": 12345.6})
    'loss 1.5000  error 25.00%  12,346 tokens/s'
    """
    shown = []
    for name, value in facts.items():
        if name.endswith("error"):
            shown.append(f"{name.replace('_', ' ')} {100 * value:.2f}%")
        elif name == "tokens_per_second":
            shown.append(f"{value:,.0f} tokens/s")
        else:
            shown.append(f"{name.replace('_', ' ')} {value:.4f}")
    return "  ".join(shown)


def progress_bars() -> progress.Progress:
    """Bars on standard error, each with the facts of its run and the time left."""
    return progress.Progress(
        progress.TextColumn("{task.description}"),
        progress.BarColumn(bar_width=None),
        progress.TextColumn("{task.completed:,.0f}/{task.total:,.0f}"),
        progress.TextColumn("{task.fields[facts]}"),
        progress.TimeRemainingColumn(),
        console=Console(stderr=True),
    )


class Terminal(Display):
    """A progress bar with the latest facts and the time left."""

    def __init__(self) -> None:
        self._progress = progress_bars()
        self._facts: dict[str, float] = {}

    def begin(self, name: str, update: int, num_updates: int) -> None:
        """Show the bar."""
        self._bar = self._progress.add_task(name, total=num_updates, completed=update, facts="")
        self._progress.start()

    def advance(self, update: int, **facts: float) -> None:
        """Move the bar."""
        self._facts |= facts
        self._progress.update(self._bar, completed=update, facts=words(self._facts))

    def say(self, text: str) -> None:
        """Print above the bar."""
        self._progress.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def end(self) -> None:
        """Leave the bar on the screen."""
        self._progress.stop()


class Lines(Display):
    """A plain line every few seconds, for logs and pipes."""

    def __init__(self, *, every_seconds: float = 10.0) -> None:
        self._every = every_seconds
        self._facts: dict[str, float] = {}

    def begin(self, name: str, update: int, num_updates: int) -> None:
        """Print the run's name and how far it is."""
        self._name, self._total = name, num_updates
        self._first = self._update = update
        self._began = self._last = time.monotonic()
        self.say(f"{name}: update {update:,} of {num_updates:,}")

    def advance(self, update: int, **facts: float) -> None:
        """Print a line, unless the last one is recent."""
        self._facts |= facts
        self._update = update
        if time.monotonic() - self._last >= self._every:
            self._print()

    def _print(self) -> None:
        self._last = time.monotonic()
        left, done = "", self._update - self._first
        # Since this process began: a resumed run may be on another machine. A rollback may lead
        # to before that.
        if done > 0:
            seconds = (self._last - self._began) / done * (self._total - self._update)
            left = f"  {clock(seconds)} left"
        place = f"{self._name}: update {self._update:,} of {self._total:,}"
        self.say(f"{place}  {words(self._facts)}{left}")

    def say(self, text: str) -> None:
        """Print a message."""
        # Standard output is for results. A log is followed while it grows, so nothing is buffered.
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()

    def end(self) -> None:
        """Print the last facts."""
        if self._facts:
            self._print()


def choose_display(*, quiet: bool = False) -> Display:
    """A progress bar in a terminal, plain lines elsewhere."""
    if quiet:
        return Display()
    return Terminal() if sys.stderr.isatty() else Lines()
