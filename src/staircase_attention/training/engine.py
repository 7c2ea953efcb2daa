"""How updates are run: one by one, or captured as soon as one looks like another before it."""

from collections.abc import Callable

import torch
from torch import Tensor

from staircase_attention.training.capture import CapturedUpdate, Inputs, Looks, Work, looks_of
from staircase_attention.training.objective import Carried

MOST_WRITTEN = 100
"""Updates that are run as written before capturing is given up."""


class Engine:
    """Runs updates, and holds the lanes' states between them.

    The first updates run as they are written. When the states and inputs of one look like those of
    the one before it, it is captured, and from then on replayed. What does not fit runs as written,
    such as the first updates after lanes have begun anew.
    """

    def __init__(self, *, why_not: str | None, say: Callable[[str], None]) -> None:
        """`why_not` says what stands in the way of capturing; empty where nobody need be told."""
        self.say = say
        self.is_capturing = why_not is None
        if why_not:
            self._give_up(why_not)
        self._seen: set[Looks] = set()
        """How updates looked that were run as written."""
        self._previous: Looks = None
        """How the update before this one looked, if its states have gone on into this one."""
        self._num_written = 0
        self._captured: CapturedUpdate | None = None
        self._states: list[Carried] | None = []
        """Where the lanes stand; None: the captured update holds them."""

    @property
    def is_captured(self) -> bool:
        """Whether an update has been captured."""
        return self._captured is not None

    @property
    def states(self) -> list[Carried]:
        """Where the lanes stand."""
        if self._states is not None:
            return self._states
        assert self._captured is not None
        return self._captured.states()

    @states.setter
    def states(self, states: list[Carried]) -> None:
        self._states, self._previous = states, None

    def run(self, work: Work, inputs: Inputs) -> Tensor:
        """One update, always by the same work: its results, which the next one may overwrite."""
        captured = self._captured_for(work, inputs) if self.is_capturing else None
        if captured is None:
            return self._run_as_written(work, inputs)
        self._states = None
        return captured.run(inputs)

    def _run_as_written(self, work: Work, inputs: Inputs) -> Tensor:
        try:
            results, self._states = work(*inputs, self.states)
        except torch.OutOfMemoryError:
            if self._captured is None:
                raise
        else:
            return results
        # There is not enough beside the memory of the graph. Weights change last, so that what
        # was begun can be begun again.
        self._captured = None
        torch.cuda.empty_cache()
        results, self._states = work(*inputs, self.states)
        return results

    def _captured_for(self, work: Work, inputs: Inputs) -> CapturedUpdate | None:
        """The captured update for these inputs and the present states, which it has taken in."""
        if self._states is None:
            assert self._captured is not None
            if self._captured.fits(inputs):
                return self._captured
        states = self.states
        looks = looks_of(inputs, states)
        if self._captured is not None and looks == self._captured.looks:
            self._captured.take_in(states)
            return self._captured
        self._states = states
        if self._captured is not None and looks in self._seen:
            # So it was on the way to the captured update, and soon will be there again.
            return None
        # A graph that does not fit gives its memory back; when its time comes, another is made.
        self._captured = None
        is_steady = looks is not None and looks == self._previous
        self._previous = looks
        if not is_steady:
            self._seen.add(looks)
            self._num_written += 1
            if self._num_written > MOST_WRITTEN:
                self._give_up(
                    "no two updates in a row look alike, as when states go on growing, or when "
                    "training.restart_every is too small for a window to fill"
                )
            return None
        try:
            self._captured = CapturedUpdate(work, inputs, states, looks)
        except RuntimeError as error:
            self._give_up(str(error).splitlines()[0])
        return self._captured

    def _give_up(self, why: str) -> None:
        self.is_capturing = False
        self.say(f"updates are not captured as a CUDA graph, and so slower: {why}")
