"""Runs any timetable: the same code for every model, in window order and in chunk order."""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from staircase_attention.attention import View
from staircase_attention.layers import Core, KeysValues, Trip, latest
from staircase_attention.models.state import Stream
from staircase_attention.schedules import Schedule, Step, num_positions, overlap

if TYPE_CHECKING:
    from staircase_attention.engine.fused.core import FusedCore


class Executor:
    """One stream on its way through a timetable.

    It holds the tokens that are under way and what earlier ones left behind; each step takes its
    queries through the core, puts what they leave behind where later steps will look for it, and
    drops what the timetable says nobody will look for.
    """

    def __init__(
        self,
        core: "Core | FusedCore",
        schedule: Schedule,
        stream: Stream,
        embedded: Float[Tensor, "rows time width"],
        *,
        recompute: bool = False,
    ) -> None:
        self.core = core
        self.recompute = recompute
        self.schedule = schedule
        self.starts = stream.starts
        self.banks = dict(stream.banks)
        self.cache = core.new_cache(stream.cache, stream.cached, num_new=embedded.shape[1])
        self.embedded = embedded
        self.under_way: dict[range, Float[Tensor, "rows part width"]] = {}
        """The tokens of each cell as they are at the moment, in the order in which they came."""

    def run(self, steps: Iterable[Step]) -> Float[Tensor, "rows time width"]:
        """Take every step; what comes out is each token after its last pass."""
        plan = list(steps)
        self.under_way = self._at_the_foot(plan)
        for step in plan:
            self._take(step)
        return torch.cat(list(self.under_way.values()), dim=1) if plan else self.embedded

    def _at_the_foot(self, plan: Sequence[Step]) -> dict[range, Float[Tensor, "rows part width"]]:
        """The tokens of all cells, before any step.

        They are cut apart at once: the gradient of a slice is as large as what it was cut from.
        """
        cells = sorted({cell.tokens for step in plan for cell in step.cells}, key=_start)
        parts = torch.split(self.embedded, [len(tokens) for tokens in cells], dim=1)
        return dict(zip(cells, parts, strict=True))

    def stream(self, before: Stream) -> Stream:
        """Where the stream stands after the run."""
        cache = tuple(held.map(compact) for held in self.cache.held())
        return Stream(
            rows=before.rows,
            position=before.position + self.embedded.shape[1],
            starts=before.starts,
            banks={key: held.map(compact) for key, held in self.banks.items()},
            cache=cache,
            cached=self.cache.positions,
        )

    def _take(self, step: Step) -> None:
        parts = [self.under_way[cell.tokens] for cell in step.cells]
        queries = parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)
        past = [self._past(step, layer) for layer in step.layers]
        trip = self._through_core(queries, step, past)
        self._bank(step, trip)
        sizes = [len(cell.tokens) for cell in step.cells]
        passed = [trip.hidden] if len(sizes) == 1 else torch.split(trip.hidden, sizes, dim=1)
        for cell, hidden in zip(step.cells, passed, strict=True):
            self.under_way[cell.tokens] = hidden
        self._cache(step, trip)

    def _through_core(
        self,
        queries: Float[Tensor, "rows queries width"],
        step: Step,
        past: Sequence[Sequence[KeysValues]],
    ) -> Trip:
        run = partial(self.core, layers=step.layers, past=past, view=self._view(step, past[0]))
        trip: Trip = (
            checkpoint(run, queries, use_reentrant=False) if self.recompute else run(queries)
        )
        return trip

    def _past(self, step: Step, layer: int) -> list[KeysValues]:
        """What a layer's queries see of earlier tokens: the cache first, then the bank."""
        pieces = self.cache.part(layer, step.frozen)
        if (step.bank, layer) in self.banks:
            pieces.append(self.banks[step.bank, layer])
        return pieces

    def _view(self, step: Step, past: Sequence[KeysValues]) -> View:
        frozen, queries = overlap(step.frozen, self.cache.positions), step.tokens
        num_held = sum(piece.num_tokens for piece in past) - num_positions(frozen)
        own = queries.stop if self.core.attends_self else queries.start
        return View.of(
            queries=queries,
            keys=(*frozen, range(queries.start - num_held, own)),
            span=self.schedule.attention_span,
            starts=self.starts,
            device=self.embedded.device,
        )

    def _bank(self, step: Step, trip: Trip) -> None:
        """Keep what later queries of this step's bank will see."""
        num_frozen = num_positions(overlap(step.frozen, self.cache.positions))
        for layer, context in zip(step.layers, trip.contexts, strict=True):
            self.banks.pop((step.bank, layer), None)
            kept = sum(piece.num_tokens for piece in context) - num_frozen
            if step.retained is not None:
                kept = min(kept, step.retained)
            if kept > 0:
                self.banks[step.bank, layer] = latest(context, kept)

    def _cache(self, step: Step, trip: Trip) -> None:
        """Cache the cells whose pass says so, and drop what no later step sees."""
        for cell in step.cells:
            if cell.cached is not None:
                start = cell.tokens.start - step.tokens.start
                part = slice(start, start + len(cell.tokens))
                levels = trip.levels[:1] if cell.cached == "input" else trip.levels
                new = self.core.freeze([level[:, part] for level in levels])
                self.cache.add(new, cell.tokens)
        self.cache.keep(step.kept)


def _start(tokens: range) -> int:
    return tokens.start


def compact(tensor: Tensor) -> Tensor:
    """The same numbers in no more memory than they need."""
    is_whole = tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
    return tensor if is_whole else tensor.clone(memory_format=torch.contiguous_format)
