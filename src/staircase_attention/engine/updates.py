"""How updates are run: one by one, or captured as soon as one looks like another before it."""

from collections.abc import Callable

import torch
from torch import Tensor

from staircase_attention.engine.capture import CapturedUpdate, Inputs, Looks, Work, looks_of
from staircase_attention.training.objective import Carried

MOST_WRITTEN = 100
"""Updates that look unlike all before them, after which capturing is given up."""
MOST_GRAPHS = 8
"""Beside so many no other is made, unless for updates that look alike in a row."""


class Engine:
    """Runs updates, and holds the lanes' states between them.

    An update runs as it is written when its look comes for the first time, and is captured when it
    comes for the second; from then on it is replayed. There is a graph for states that have their
    full size, and there are some for those on the way there, which come again whenever lanes begin
    anew.
    """

    def __init__(self, *, why_not: str | None, say: Callable[[str], None]) -> None:
        """`why_not` says what stands in the way of capturing; empty where nobody need be told."""
        self.say = say
        self._graphs: dict[Looks, CapturedUpdate] = {}
        self._holder: CapturedUpdate | None = None
        """The graph that holds the lanes' states, if one does."""
        self._states: list[Carried] = []
        """Where the lanes stand, if no graph holds that."""
        self._seen: set[Looks] = set()
        """How updates looked that were run as written."""
        self._refused: set[Looks] = set()
        """How those looked that could not be captured."""
        self._previous: Looks = None
        """How the update before this one looked, if its states have gone on into this one."""
        self._num_unlike = 0
        """Updates that looked unlike all before them."""
        self._told: set[str] = set()
        """What has been said, so that it is not said again."""
        self.is_capturing = why_not is None
        if why_not:
            self._give_up(why_not)

    @property
    def is_captured(self) -> bool:
        """Whether some update has been captured."""
        return bool(self._graphs)

    @property
    def states(self) -> list[Carried]:
        """Where the lanes stand."""
        return self._states if self._holder is None else self._holder.states()

    @states.setter
    def states(self, states: list[Carried]) -> None:
        self._states, self._holder, self._previous = states, None, None

    def run(self, work: Work, inputs: Inputs) -> Tensor:
        """One update, always by the same work: its results, which the next one may overwrite."""
        graph = self._graph_for(work, inputs) if self.is_capturing else None
        if graph is None:
            return self._run_as_written(work, inputs)
        self._states, self._holder = [], graph
        return graph.run(inputs)

    def _run_as_written(self, work: Work, inputs: Inputs) -> Tensor:
        try:
            results, self._states = work(*inputs, self._states)
        except torch.OutOfMemoryError:
            if not self._graphs:
                raise
        else:
            return results
        # There is not enough beside the memory of the graphs. Weights have not been changed when
        # this error comes, so that what was begun can be begun again.
        self._tell_once(
            "graphs are made again and again, as memory is too little for them and for updates "
            "that run as written; use more training.num_micro_batches, or training.recompute"
        )
        self._drop_graphs()
        results, self._states = work(*inputs, self._states)
        return results

    def _graph_for(self, work: Work, inputs: Inputs) -> CapturedUpdate | None:
        """The graph for these inputs and the present states, which it has taken in.

        Without one, no graph holds the states any more.
        """
        if self._holder is not None and self._holder.can_go_on(inputs):
            return self._holder
        self._states, self._holder = self.states, None
        looks = looks_of(inputs, self._states)
        is_steady = looks is not None and looks == self._previous
        self._previous = looks
        if looks in self._graphs:
            self._graphs[looks].take_in(self._states)
        elif looks is None or looks not in self._seen:
            self._meet(looks)
        elif is_steady or (looks not in self._refused and len(self._graphs) < MOST_GRAPHS):
            self._capture(work, inputs, looks, is_steady=is_steady)
        elif looks not in self._refused:
            self._tell_once(f"{MOST_GRAPHS} graphs are the most; other updates are slower")
        return self._graphs.get(looks)

    def _meet(self, looks: Looks) -> None:
        self._seen.add(looks)
        self._num_unlike += 1
        if self._num_unlike > MOST_WRITTEN:
            self._give_up(
                "updates go on looking different, as when states go on growing, or when segments "
                "end at ever other places within a chunk"
            )

    def _capture(self, work: Work, inputs: Inputs, looks: Looks, *, is_steady: bool) -> None:
        beside = next(iter(self._graphs.values()), None)
        try:
            self._graphs[looks] = CapturedUpdate(work, inputs, self._states, looks, beside)
        except RuntimeError as error:
            why = str(error).splitlines()[0]
            wants_room = isinstance(error, torch.OutOfMemoryError) and beside is not None
        else:
            return
        # What a failed capture leaves of the memory that graphs share is not to be relied on. The
        # error is gone by now, and with it what it kept alive.
        del beside
        self._drop_graphs()
        if wants_room:
            self._capture(work, inputs, looks, is_steady=is_steady)
        elif is_steady:
            self._give_up(why)
        else:
            if not self._refused:
                self.say(f"some updates cannot be captured, and are slower: {why}")
            self._refused.add(looks)

    def _drop_graphs(self) -> None:
        """Give the memory of all graphs back."""
        self._graphs.clear()
        torch.cuda.empty_cache()

    def _give_up(self, why: str) -> None:
        self.is_capturing = False
        self._drop_graphs()
        self.say(f"updates are not captured as a CUDA graph, and so slower: {why}")

    def _tell_once(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            self.say(text)
