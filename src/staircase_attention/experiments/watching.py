"""What a person sees of several runs at once: lines for all, and bars in a terminal."""

from collections.abc import Callable
from copy import deepcopy

from staircase_attention.clock import clock
from staircase_attention.experiments.planned_run import PlannedRun
from staircase_attention.experiments.run_process import Message
from staircase_attention.experiments.run_records import read_run
from staircase_attention.training.display import Display, Lines, Terminal, words

SCORES = ("error", "bits_per_byte")
"""What is told of a score."""


class Bar(Terminal):
    """One of several bars in a terminal, gone when its run ends."""

    def __init__(self, terminal: Terminal) -> None:
        super().__init__()
        self._progress = terminal._progress

    def end(self) -> None:
        """Take the bar away; the others stay."""
        if self._bar is not None:
            self._progress.remove_task(self._bar)


class RunView:
    """One run's part of a display that shows several."""

    def __init__(self, label: str, own: Display, say: Callable[[str], None], *, title: str) -> None:
        self._label, self._own, self._say, self._title = label, own, say, title
        self._is_begun = False

    def show(self, message: Message) -> None:
        """Do what the trainer asked of its display."""
        word, values, facts = message
        getattr(self, word)(*values, **facts)

    def begin(self, _name: str, update: int, num_updates: int) -> None:
        """Show the run under a name that tells it from the others."""
        self._is_begun = True
        self._own.begin(self._label, update, num_updates)

    def advance(self, update: int, **facts: float) -> None:
        """Show how it stands."""
        self._own.advance(update, **facts)

    def say(self, text: str) -> None:
        """Say of which run this is."""
        self._say(f"{self._title}: {text}")

    def end(self) -> None:
        """Show it no more; a run that died could not say so itself."""
        if self._is_begun:
            self._own.end()
        self._is_begun = False


class Watching:
    """Several runs before one display, which was made for one."""

    def __init__(self, progress: Display | None) -> None:
        self._progress = Display() if progress is None else progress
        self.say = self._progress.say

    def begin(self, run: PlannedRun, place: str) -> RunView:
        """A run begins, or goes on; its view."""
        self.say(f"{place}: {run.title}")
        # A terminal may have no room for whole titles: their ends tell runs apart.
        end = run.title.rpartition("/")[2] if isinstance(self._progress, Terminal) else run.title
        return RunView(end, self._own(), self.say, title=run.title)

    def end(self, run: PlannedRun, view: RunView) -> None:
        """A run has come to its end, or stopped."""
        view.end()
        view.say(outcome(run))

    def close(self) -> None:
        """Leave the terminal as it was."""
        if isinstance(self._progress, Terminal):
            self._progress.end()

    def _own(self) -> Display:
        """What shows the progress of one run; a display of another's making only hears lines."""
        if isinstance(self._progress, Terminal):
            return Bar(self._progress)
        return deepcopy(self._progress) if isinstance(self._progress, Lines) else Display()


def outcome(run: PlannedRun) -> str:
    """How a run ended, in a few words."""
    record = read_run(run.folder.parent, run.recipe.seed)
    if record.status == "failed":
        return f"failed ({record.failure})"
    if record.result is None:
        return "stopped"
    test = record.result.test or {}
    scores = words({f"test_{name}": test[name] for name in SCORES if name in test})
    facts = [record.status, scores, clock(record.result.wall_seconds)]
    return ", ".join(fact for fact in facts if fact)
