"""One decoding step as an ONNX graph: tokens and a state in, logits and the next state out.

The timetable is followed once, before the export: it tells what a step sees at each distance, and
which step of that earlier token made it. That depends only on the token's place in the period, its
phase, and so becomes a table of constants. The state has a fixed shape: for each step that later
tokens look back to, its latest keys and values, the newest last. A stream begins with zeros; what
lies before its first token is hidden.
"""

import os
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import chain
from pathlib import Path

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn

from staircase_attention.attention import View
from staircase_attention.checks import check_integer, input_error
from staircase_attention.files import check_can_write
from staircase_attention.generation.stepper import inference
from staircase_attention.layers import KeysValues
from staircase_attention.layers.keys_values import join
from staircase_attention.models import SequenceModel
from staircase_attention.schedules import OUTSIDE, Step, joined, overlap

# What a step sees: by distance, the number of the step that made it, or CACHED for the cache.
Sight = dict[int, int]
CACHED = -1
OPSET = 18


@dataclass(frozen=True, kw_only=True)
class StepView(View):
    """A view of one query, whose mask depends on how long the stream is."""

    mask: Bool[Tensor, "1 1 1 keys"]

    @property
    def hidden(self) -> Bool[Tensor, "1 1 1 keys"]:  # type: ignore[override]
        """The keys that the query must not see."""
        return self.mask


class DecodingStep(nn.Module):
    """A model that takes one token per row: the plain twin of the exported graph.

    `step(tokens, *state)` gives the logits, those after each step of the recurrence (without a
    coda, what each pass would say), and the next state, whose first tensor is the position. A
    schedule whose state grows is followed for `num_tokens` tokens.

    >>> from staircase_attention import CoreConfig, Staircase
    >>> core = CoreConfig(width=16, num_layers=2, num_heads=2)
    >>> schedule = Staircase(chunk_size=4, num_passes=3)
    >>> step = DecodingStep(SequenceModel(vocab_size=10, core=core, schedule=schedule))
    >>> logits, passes, *state = step(torch.tensor([3, 1]), *step.initial_state(2))
    >>> logits.shape, passes.shape
    (torch.Size([2, 10]), torch.Size([2, 3, 10]))
    """

    def __init__(self, model: SequenceModel, *, num_tokens: int | None = None) -> None:
        super().__init__()
        self.model, self.period = model, model.schedule.period
        phases = [token_steps(model, phase) for phase in range(self.period)]
        if len({tuple((step.layers, step.lags) for step in steps) for steps in phases}) > 1:
            rule, remedy = "tokens of an exported model take the same steps", "use the model itself"
            raise input_error(rule, model.schedule, remedy)
        self.steps = phases[0]
        # What a token leaves in the cache at each step, in any phase.
        every = zip(*phases, strict=True)
        self.cached = [{step.cells[0].cached for step in steps} - {None} for steps in every]
        sights = followed(model, num_tokens)
        self.lengths: dict[tuple[int, int], int] = {}
        """By step and layer: how many of the latest tokens' keys and values are kept."""
        for number in range(len(self.steps)):
            for far, made in chain.from_iterable(sight[number].items() for sight in sights):
                for source in self._sources(number, made):
                    self.lengths[source] = max(self.lengths.get(source, 0), far)
        self.widths: list[int] = []
        for number in range(len(self.steps)):
            width = max((far for sight in sights for far in sight[number]), default=0)
            self.widths.append(width)
            places = [self._places(number, sight[number], width) for sight in sights]
            table = torch.tensor(places, dtype=torch.int64, device=model.output.weight.device)
            self.register_buffer(f"places_{number}", table)

    @property
    def state_names(self) -> list[str]:
        """What each tensor of the state is."""
        pairs = [
            f"{part}_{'cached' if number == CACHED else number}_{layer}"
            for number, layer in self.lengths
            for part in ("keys", "values")
        ]
        lagged = [f"carried_{number}" for number, step in enumerate(self.steps) if step.lags]
        return ["position", *pairs, *lagged]

    def initial_state(self, num_rows: int) -> list[Tensor]:
        """The state of streams that have not begun."""
        core, like = self.model.config, self.model.output.weight
        shape = [core.key_value_heads, core.head_size, core.head_size]
        shapes = self.model.memory_shapes or [shape] * sum(core.depth)
        state = [torch.zeros((), dtype=torch.int64, device=like.device)]
        for (_, layer), length in self.lengths.items():
            heads, *sizes = shapes[layer]
            state += [like.new_zeros(num_rows, heads, length, size) for size in sizes]
        return state + [like.new_zeros(num_rows, 1, core.width) for step in self.steps if step.lags]

    def forward(
        self, tokens: Int[Tensor, " rows"], position: Int[Tensor, ""], *state: Tensor
    ) -> tuple[Tensor, ...]:
        """One more token per row."""
        model, core = self.model, self.model.core
        parts = iter(state)
        held = {source: KeysValues(next(parts), next(parts)) for source in self.lengths}
        after, carried, said = dict(held), [], []
        hidden = first = model.embedding(tokens[:, None])
        for number, step in enumerate(self.steps):
            is_first = step.cells[0].pass_number == 1
            query = hidden
            if step.lags:
                carried.append(hidden)
                query = next(parts)
            if step.lags or (core.injects and not is_first):
                query = (core.inject if core.injects else torch.add)(query, first)
            past, view = self._seen(number, position, held)
            trip = core(query, layers=step.layers, past=past, view=view)
            hidden = trip.hidden if is_first else core.settle(hidden, trip.hidden)
            if step.bank == OUTSIDE:
                first = hidden
            else:
                said.append(hidden)
            layers = zip(step.layers, trip.contexts, strict=True)
            new = {(number, layer): context for layer, context in layers}
            for kind in self.cached[number]:
                frozen = core.freeze(trip.levels[:1] if kind == "input" else trip.levels)
                new |= {(CACHED, layer): [part] for layer, part in enumerate(frozen)}
            for source in new.keys() & held.keys():
                own = join(new[source]).map(lambda part: part[:, :, -1:])
                older = held[source].map(lambda part: part[:, :, 1:])
                after[source] = join([older, own])
        logits = model.output(model.output_norm(hidden))[:, 0]
        passes = model.output(model.output_norm(torch.cat(said, dim=1)))
        return logits, passes, position + 1, *chain.from_iterable(after.values()), *carried

    def _seen(
        self, number: int, position: Tensor, held: dict[tuple[int, int], KeysValues]
    ) -> tuple[list[list[KeysValues]], StepView]:
        """What each layer of a step sees of earlier tokens, the oldest first, and the view."""
        step, table = self.steps[number], self.get_buffer(f"places_{number}")
        num_past = self.widths[number]
        places = table.index_select(0, (position % self.period)[None])[0]
        distances = torch.arange(num_past, 0, -1, device=table.device)
        mask = (places < 0) | (distances > position)
        attends_self = self.model.core.attends_self or step.span is not None
        if attends_self:
            mask = torch.cat([mask, mask.new_zeros(1)])
        view = StepView(
            num_queries=1,
            num_keys=num_past + int(attends_self),
            first_query=num_past,
            mask=mask[None, None, None],
            device=table.device,
        )
        index, every = places.clamp(min=0), self._all_sources(number)
        past: list[list[KeysValues]] = [[] for _ in step.layers]
        for place, pieces in enumerate(past if every else ()):
            together = join([held[sources[place]] for sources in every])
            pieces.append(together.map(lambda part: part.index_select(2, index)))
        return past, view

    def _sources(self, number: int, made: int) -> list[tuple[int, int]]:
        """Where each layer of a step finds what a step made, or what is cached."""
        is_shared = made == CACHED and self.model.core.shared is not None
        return [(made, 0 if is_shared else layer) for layer in self.steps[number].layers]

    def _all_sources(self, number: int) -> list[list[tuple[int, int]]]:
        """All that a step may see, in the order of its table."""
        every = [self._sources(number, made) for made in range(CACHED, len(self.steps))]
        return [sources for sources in every if sources[0] in self.lengths]

    def _places(self, number: int, sight: Sight, width: int) -> list[int]:
        """By distance, from the farthest: where it lies among the sources side by side, or -1."""
        start, last = 0, {}
        for sources in self._all_sources(number):
            start += self.lengths[sources[0]]
            last[sources[0][0]] = start
        return [last[sight[far]] - far if far in sight else -1 for far in range(width, 0, -1)]


def token_steps(model: SequenceModel, position: int) -> list[Step]:
    """All steps of one token."""
    tokens, depth = range(position, position + 1), model.config.depth
    phases = model.schedule.phases(tokens, depth=depth, order="chunk", span=model.outside_span)
    return list(chain.from_iterable(phases))


def followed(model: SequenceModel, num_tokens: int | None) -> list[list[Sight]]:
    """For each phase, what each step sees once the stream is long enough."""
    schedule, period = model.schedule, model.schedule.period
    if num_tokens is None and not schedule.is_state_bounded:
        rule = "a state that grows is exported for a number of tokens"
        raise input_error(rule, "none", "pass num_tokens, as 1024")
    if num_tokens is None:
        reach = max(schedule.default_max_distance, model.outside_span or 0)
        num_tokens = 2 * (reach + period)
    else:
        check_integer("num_tokens", num_tokens, minimum=1, example=1024)
    latest: list[list[Sight]] = [[] for _ in range(period)]
    for position, sights in enumerate(walk(model, -(-num_tokens // period) * period)):
        before = latest[position % period]
        for old, new in zip(before, sights, strict=bool(before)):
            # A shorter stream sees the same, as far as it reaches.
            assert old == {far: made for far, made in new.items() if far <= position - period}
        latest[position % period] = sights
    return latest


def walk(model: SequenceModel, num_tokens: int) -> Iterator[list[Sight]]:
    """What each step of each token sees, by the steps' own bookkeeping."""
    banks: dict[tuple[int, int], list[int]] = {}
    cached: tuple[range, ...] = ()
    for position in range(num_tokens):
        sights = []
        for number, step in enumerate(token_steps(model, position)):
            span = step.span or model.schedule.attention_span or num_tokens
            held = banks.pop((step.bank, step.layers.start), [])
            frozen = overlap(step.frozen, cached)
            sight = {position - at: CACHED for part in frozen for at in part}
            sight |= {len(held) - place: made for place, made in enumerate(held)}
            sights.append({far: made for far, made in sight.items() if far < span})
            if step.retained != 0 and (model.core.attends_self or step.span is not None):
                banks[step.bank, step.layers.start] = [*held, number][-(step.retained or 0) :]
            new = [step.tokens] if step.cells[0].cached else []
            cached = overlap(joined((*cached, *new)), step.kept)
        yield sights


def export_onnx(
    model: SequenceModel, file: str | os.PathLike[str], *, num_tokens: int | None = None
) -> Path:
    """Write one decoding step as an ONNX file.

    Inputs: tokens [rows], position and the tensors of a state, all zero at first. Outputs: logits
    [rows, symbols], passes [rows, passes, symbols], and the same state with `next_` before its
    names. All rows are at the same position. A schedule whose state grows needs `num_tokens`, the
    number of tokens for which the file is exact.
    """
    if not isinstance(model, SequenceModel):
        raise input_error("an exported model is a SequenceModel", type(model).__name__, "use one")
    if find_spec("onnx") is None:
        remedy = "run pip install 'staircase-attention[onnx]'"
        raise input_error("an ONNX file needs the package onnx", "none", remedy)
    target = Path(file)
    check_can_write(target, "the file of an export")
    step = DecodingStep(model, num_tokens=num_tokens)
    names, state = step.state_names, step.initial_state(1)
    after = [f"next_{name}" for name in names]
    by_row = {"tokens", "logits", "passes", *names[1:], *after[1:]}
    with inference(model), warnings.catch_warnings():
        # The exporter by tracing: a step has no branches, and the newer one takes ten times longer.
        # It warns of what it takes for constants: all shapes but the number of rows are.
        warnings.simplefilter("ignore")
        torch.onnx.export(
            step.eval(),
            (torch.zeros(1, dtype=torch.int64, device=state[0].device), *state),
            target,
            input_names=["tokens", *names],
            output_names=["logits", "passes", *after],
            dynamic_axes={name: {0: "rows"} for name in by_row},
            opset_version=OPSET,
            dynamo=False,
        )
    return target
