"""Runs any timetable: the same code for every model, in window order and in chunk order."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from itertools import groupby
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from staircase_attention.attention import View
from staircase_attention.layers import KeysValues, Trip, latest
from staircase_attention.models.state import Stream
from staircase_attention.schedules import (
    CARRIED,
    OUTSIDE,
    Cell,
    Order,
    Step,
    num_positions,
    overlap,
)

if TYPE_CHECKING:
    from staircase_attention.models.sequence_model import SequenceModel

# Told of every step: the stream before the call, the step, what its queries saw, the result.
Watch = Callable[[Stream, Step, View, Trip], None]


class Executor:
    """Takes the tokens of one stream through a timetable.

    It holds what earlier tokens left in the banks and in the cache. Each step takes its queries
    through the core, stores their keys and values for later steps, and drops those that the
    timetable no longer needs.
    """

    def __init__(
        self,
        model: "SequenceModel",
        stream: Stream,
        embedded: Float[Tensor, "rows time width"],
        watch: Watch | None = None,
    ) -> None:
        self.model, self.watch, self.settle = model, watch, model.core.settle
        self.before, self.num_tokens = stream, embedded.shape[1]
        self.inject = model.core.inject if model.core.injects else None
        self.num_cut = model.num_cut
        """First passes of a chunk through which no gradients flow."""
        recompute = model.recompute and torch.is_grad_enabled()
        self.core = model.backend.runner(model.core, embedded, recompute=recompute)
        self.banks = dict(stream.banks)
        self.cache = self.core.new_cache(stream.cache, stream.cached, num_new=self.num_tokens)

    def phases(self, order: Order) -> Iterator[Iterator[Step]]:
        """The steps of the prelude, of the recurrence and of the coda."""
        tokens = range(self.before.position, self.before.position + self.num_tokens)
        depth, span = self.model.config.depth, self.model.outside_span
        phases = self.model.schedule.phases(tokens, depth=depth, order=order, span=span)
        most = self.model.draft_passes
        for steps in phases:
            yield (step for step in steps if most is None or step.cells[-1].pass_number <= most)

    def run(
        self, entered: Float[Tensor, "rows time width"], steps: Iterable[Step]
    ) -> Float[Tensor, "rows time width"]:
        """Take every step of one phase; the result is each token after its last pass."""
        plan = list(steps)
        if not plan:
            return entered
        cells = sorted(
            {cell.tokens for step in plan for cell in step.cells}, key=lambda at: at.start
        )
        # Cut at once: the gradient of a slice is as large as what it was cut from.
        pieces = torch.split(entered, [len(tokens) for tokens in cells], dim=1)
        first = dict(zip(cells, pieces, strict=True))
        hidden = dict(first)
        for steps in self._batches(plan):
            # Steps of cut passes alone need no memory for gradients.
            is_cut = self.num_cut >= max(cell.pass_number for cell in steps[0].cells)
            with torch.no_grad() if is_cut and steps[0].bank != OUTSIDE else nullcontext():
                parts = [
                    [self._query(step, cell, hidden, first) for cell in step.cells]
                    for step in steps
                ]
                rows = [part[0] if len(part) == 1 else torch.cat(part, dim=1) for part in parts]
                queries = rows[0] if len(rows) == 1 else torch.cat(rows)
                past = [self._past(steps, layer) for layer in steps[0].layers]
                view = self._view(steps, past[0], entered.device)
                trip = self.core(queries, layers=steps[0].layers, past=past, view=view)
                for number, step in enumerate(steps):
                    own = trip if len(steps) == 1 else trip.rows(number, len(entered))
                    if step.lags:
                        # The next token enters with the present one after the pass before.
                        last = hidden[step.tokens][:, None, -1:]
                        self.banks[step.bank, CARRIED] = KeysValues(last, last[..., :0])
                    sizes = [len(cell.tokens) for cell in step.cells]
                    after = (
                        [own.hidden] if len(sizes) == 1 else torch.split(own.hidden, sizes, dim=1)
                    )
                    for cell, new in zip(step.cells, after, strict=True):
                        before, is_first = hidden[cell.tokens], cell.pass_number == 1
                        hidden[cell.tokens] = new if is_first else self.settle(before, new)
                    if self.watch:
                        alone = len(steps) == 1
                        seen = view if alone else self._view([step], past[0], entered.device)
                        self.watch(self.before, step, seen, own)
                    self._extend_bank(step, own)
                    self._extend_cache(step, own)
                # Without gradients this frees the step's keys and values before the next step's.
                del past, trip, own
            # Not among what is cut: what stays in the cache keeps its gradients.
            self.cache.keep(steps[-1].kept)
        return torch.cat(list(hidden.values()), dim=1)

    def _batches(self, plan: Sequence[Step]) -> Iterator[list[Step]]:
        """Steps that are taken at once: all passes of a lagged token, else one by one."""
        for tokens, group in groupby(plan, key=lambda step: step.tokens):
            steps = list(group)
            is_free = len(tokens) == 1 and all(step.lags for step in steps[1:])
            # Passes in one batch share a view, and the cache has no rows for several of them.
            kinds = {(step.layers, step.retained, step.frozen) for step in steps}
            is_free &= kinds == {(steps[0].layers, steps[0].retained, ())}
            yield from [steps] if is_free and not self.num_cut else [[step] for step in steps]

    def _query(
        self, step: Step, cell: Cell, hidden: Mapping[range, Tensor], first: Mapping[range, Tensor]
    ) -> Float[Tensor, "rows queries width"]:
        """What a chunk enters its next pass with; `first` is what it entered the first with."""
        query = hidden[cell.tokens]
        if step.lags:
            held = self.banks.get((step.bank, CARRIED))
            before = torch.zeros_like(query[:, :1]) if held is None else held.keys[:, 0]
            query = torch.cat([before, query[:, :-1]], dim=1)
        if self.num_cut and cell.pass_number == self.num_cut + 1:
            # A query sees no chunk that made fewer passes, so this cuts all that came before.
            query = query.detach()
        if step.lags or (self.inject and cell.pass_number > 1):
            # A lagged pass would not see its own token if nothing were injected.
            query = (self.inject or torch.add)(query, first[cell.tokens])
        return query

    def stream(self) -> Stream:
        """Where the stream stands after the run."""
        return Stream(
            rows=self.before.rows,
            position=self.before.position + self.num_tokens,
            starts=self.before.starts,
            banks={key: held.map(compact) for key, held in self.banks.items()},
            cache=tuple(held.map(compact) for held in self.cache.held()),
            cached=self.cache.positions,
        )

    def _past(self, steps: Sequence[Step], layer: int) -> list[KeysValues]:
        """What a layer's queries see of earlier tokens: the cache first, then the bank."""
        pieces = self.cache.part(layer, steps[0].frozen)
        banks = [self.banks[step.bank, layer] for step in steps if (step.bank, layer) in self.banks]
        if len(banks) > 1:
            banks = [KeysValues(*(torch.cat(both) for both in zip(*banks, strict=True)))]
        return [*pieces, *banks]

    def _view(
        self, steps: Sequence[Step], past: Sequence[KeysValues], device: torch.device
    ) -> View:
        step = steps[0]
        # After a restart the cache may hold less than the timetable would show.
        frozen, queries = overlap(step.frozen, self.cache.positions), step.tokens
        num_held = sum(piece.num_tokens for piece in past) - num_positions(frozen)
        attends_self = self.model.core.attends_self or step.span is not None
        own = queries.stop if attends_self else queries.start
        return View.of(
            queries=queries,
            keys=(*frozen, range(queries.start - num_held, own)),
            span=step.span or self.model.schedule.attention_span,
            starts=self.before.starts * len(steps),
            device=device,
        )

    def _extend_bank(self, step: Step, trip: Trip) -> None:
        """Keep what later queries of this step's bank will see."""
        # A context begins with the frozen tokens, which stay in the cache.
        num_frozen = num_positions(overlap(step.frozen, self.cache.positions))
        for layer, context in zip(step.layers, trip.contexts, strict=True):
            self.banks.pop((step.bank, layer), None)
            num_kept = sum(piece.num_tokens for piece in context) - num_frozen
            if step.retained is not None:
                num_kept = min(num_kept, step.retained)
            if num_kept > 0:
                self.banks[step.bank, layer] = latest(context, num_kept)

    def _extend_cache(self, step: Step, trip: Trip) -> None:
        """Cache the cells that the timetable marks."""
        for cell in step.cells:
            if cell.cached is not None:
                start = cell.tokens.start - step.tokens.start
                part = slice(start, start + len(cell.tokens))
                # The first level is the input of the pass, the others are its layers' outputs.
                levels = trip.levels[:1] if cell.cached == "input" else trip.levels
                new = self.core.freeze([level[:, part] for level in levels])
                self.cache.add(new, cell.tokens)


def compact(tensor: Tensor) -> Tensor:
    """The same numbers in no more memory than they need."""
    try:
        num_bytes = tensor.untyped_storage().nbytes()
    except NotImplementedError:
        # The tensors of torch.func have no storage of their own.
        return tensor
    is_whole = num_bytes == tensor.numel() * tensor.element_size()
    return tensor if is_whole else tensor.clone(memory_format=torch.contiguous_format)
