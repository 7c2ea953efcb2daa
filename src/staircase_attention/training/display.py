"""What a person sees while a run goes on: a live line in a terminal, plain lines elsewhere."""

import sys
import time
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from staircase_attention.clock import clock


class Display(Protocol):
    """What the trainer tells whoever watches."""

    def begin(self, name: str, update: int, num_updates: int) -> None:
        """A run begins, or goes on."""

    def advance(self, update: int, **facts: float) -> None:
        """An update is done; facts are the latest known loss, error and tokens a second."""

    def say(self, text: str) -> None:
        """Something happened that a person should know."""

    def end(self) -> None:
        """The run is over, or stops."""


class Silent:
    """Shows nothing."""

    def begin(self, name: str, update: int, num_updates: int) -> None:
        """Nothing."""

    def advance(self, update: int, **facts: float) -> None:
        """Nothing."""

    def say(self, text: str) -> None:
        """Nothing."""

    def end(self) -> None:
        """Nothing."""


def words(facts: dict[str, float]) -> str:
    """Facts in the form in which they are shown.

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


class Terminal:
    """A bar that moves, with the latest facts beside it and the time that is left."""

    def __init__(self) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            TextColumn("{task.completed:,.0f}/{task.total:,.0f}"),
            TextColumn("{task.fields[facts]}"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
        )
        self._bar: TaskID | None = None
        self._facts: dict[str, float] = {}

    def begin(self, name: str, update: int, num_updates: int) -> None:
        """Show the bar."""
        self._bar = self._progress.add_task(name, total=num_updates, completed=update, facts="")
        self._progress.start()

    def advance(self, update: int, **facts: float) -> None:
        """Move the bar."""
        assert self._bar is not None
        self._facts |= facts
        self._progress.update(self._bar, completed=update, facts=words(self._facts))

    def say(self, text: str) -> None:
        """Print above the bar."""
        self._progress.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def end(self) -> None:
        """Leave the bar as it is."""
        self._progress.stop()


class Lines:
    """A plain line now and then, for logs and pipes."""

    def __init__(self, *, every_seconds: float = 10.0) -> None:
        self._every = every_seconds
        self._facts: dict[str, float] = {}

    def begin(self, name: str, update: int, num_updates: int) -> None:
        """Say what runs."""
        self._name, self._total = name, num_updates
        self._first = self._update = update
        self._began = self._last = time.monotonic()
        self.say(f"{name}: update {update:,} of {num_updates:,}")

    def advance(self, update: int, **facts: float) -> None:
        """Say how it stands, if that is long ago."""
        self._facts |= facts
        self._update = update
        if time.monotonic() - self._last >= self._every:
            self._tell()

    def _tell(self) -> None:
        self._last = time.monotonic()
        speed = (self._last - self._began) / max(1, self._update - self._first)
        left = clock(speed * (self._total - self._update))
        place = f"{self._name}: update {self._update:,} of {self._total:,}"
        self.say(f"{place}  {words(self._facts)}  {left} left")

    def say(self, text: str) -> None:
        """Print a line."""
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()

    def end(self) -> None:
        """Say how it stood in the end."""
        if self._facts:
            self._tell()


def choose_display(*, quiet: bool = False, **options: Any) -> Display:  # noqa: ANN401
    """A live bar in a terminal, plain lines elsewhere."""
    if quiet:
        return Silent()
    return Terminal() if sys.stderr.isatty() else Lines(**options)
