"""One decoding step as an ONNX graph: tokens and a state in, logits and the next state out.

The timetable is followed once, before the export: it tells what a step sees at each distance, and
which step of that earlier token made it. That depends only on the token's place in the period, its
phase, and so becomes a table of constants. The state has a fixed shape: for each step that later
tokens look back to, its latest keys and values, the newest last. A stream begins with zeros; what
lies before its first token is hidden.
"""

import os
import warnings
from dataclasses import dataclass
from itertools import accumulate, chain
from pathlib import Path

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn

from staircase_attention.attention import View
from staircase_attention.checks import check_integer, import_extra, input_error, one_line
from staircase_attention.generation.stepper import inference
from staircase_attention.layers import KeysValues
from staircase_attention.layers.keys_values import join
from staircase_attention.models import SequenceModel, Stream
from staircase_attention.schedules import OUTSIDE, Ledger, Step

# What a step sees: by distance, the number of the step that made it, or CACHED for the cache.
Sight = dict[int, int]
CACHED = -1


@dataclass(frozen=True, kw_only=True)
class StepView(View):
    """A view of one query, whose mask depends on how long the stream is."""

    mask: Bool[Tensor, "1 1 1 keys"]

    @property
    def hidden(self) -> Bool[Tensor, "1 1 1 keys"]:
        """The keys that the query must not see."""
        return self.mask


class DecodingStep(nn.Module):
    """A model that takes one token per row: the plain twin of the exported graph.

    `step(tokens, *state)` gives the logits, those after each step of the recurrence (without a
    coda, what each pass would say), and the next state, whose first tensor is the position. A
    schedule whose state grows is followed for `num_tokens` tokens.
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
        sights = list(zip(*followed(model, num_tokens), strict=True))
        self.makers = [sorted({made for one in seen for made in one.values()}) for seen in sights]
        """For each step, the steps of earlier tokens whose keys and values it sees."""
        self.lengths: dict[tuple[int, int], int] = {}
        """By step and layer: how many of the latest tokens' keys and values are kept."""
        for number, seen in enumerate(sights):
            for far, made in chain.from_iterable(one.items() for one in seen):
                for source in self._sources(number, made):
                    self.lengths[source] = max(self.lengths.get(source, 0), far)
        self.widths = [max((far for one in seen for far in one), default=0) for seen in sights]
        for number, seen in enumerate(sights):
            # By phase and distance, the farthest first: the place among the makers, or -1.
            lengths = [self.lengths[self._sources(number, made)[0]] for made in self.makers[number]]
            ends = dict(zip(self.makers[number], accumulate(lengths), strict=True))
            distances = range(self.widths[number], 0, -1)
            places = [
                [ends[one[far]] - far if far in one else -1 for far in distances] for one in seen
            ]
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
        # A tensor in place of a number, so that the graph has it as an input.
        stream = Stream(rows=(0,), starts=(0,), position=position)  # type: ignore[arg-type]
        hidden = first = model.embed(tokens[:, None], stream)
        for number, step in enumerate(self.steps):
            is_first = step.cells[0].pass_number == 1
            query = next(parts) if step.lags else hidden
            carried += [hidden] if step.lags else []
            if step.lags or (core.injects and not is_first):
                query = (core.inject if core.injects else torch.add)(query, first)
            past, view = self._seen(number, position, held)
            trip = core(query, layers=step.layers, past=past, view=view)
            hidden = trip.hidden if is_first else core.settle(hidden, trip.hidden)
            said += [] if step.bank == OUTSIDE else [hidden]
            first = hidden if step.bank == OUTSIDE else first
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
        step, num_past = self.steps[number], self.widths[number]
        table = self.get_buffer(f"places_{number}")
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
        past: list[list[KeysValues]] = [[] for _ in step.layers]
        every = [self._sources(number, made) for made in self.makers[number]]
        for pieces, sources in zip(past, zip(*every, strict=True), strict=False):
            together = join([held[source] for source in sources])
            pieces.append(together.map(lambda part: part.index_select(2, places.clamp(min=0))))
        return past, view

    def _sources(self, number: int, made: int) -> list[tuple[int, int]]:
        """Where each layer of a step finds what a step made, or what is cached."""
        is_shared = made == CACHED and self.model.core.shared is not None
        return [(made, 0 if is_shared else layer) for layer in self.steps[number].layers]


def token_steps(model: SequenceModel, position: int) -> list[Step]:
    """All steps of one token."""
    tokens, depth = range(position, position + 1), model.config.depth
    phases = model.schedule.phases(tokens, depth=depth, order="chunk", span=model.outside_span)
    return list(chain.from_iterable(phases))


def followed(model: SequenceModel, num_tokens: int | None) -> list[list[Sight]]:
    """For each phase, what each step of a token sees once the stream is long enough."""
    schedule, period = model.schedule, model.schedule.period
    if num_tokens is not None:
        if schedule.is_state_bounded:
            raise input_error("num_tokens is for a state that grows", num_tokens, "leave it out")
        check_integer("num_tokens", num_tokens, minimum=1, example=1024)
    elif schedule.is_state_bounded:
        num_tokens = 2 * (max(schedule.default_max_distance, model.outside_span or 0) + period)
    else:
        rule = "a state that grows is exported for a number of tokens"
        raise input_error(rule, "none", "pass num_tokens, as 1024")
    ledger = Ledger(attends_self=schedule.attends_self)
    latest = [list[Sight]() for _ in range(period)]
    made: dict[tuple[int, int, int], int] = {}
    for position in range(-(-num_tokens // period) * period):
        sights: list[Sight] = []
        for number, (step, held) in enumerate(ledger.follow(token_steps(model, position))):
            span = step.span or schedule.attention_span or num_tokens
            made[step.bank, step.layers.start, position] = number
            sight = {position - at: CACHED for part in step.frozen for at in part}
            for at in held:
                sight[position - at] = made[step.bank, step.layers.start, at]
            sights.append({far: one for far, one in sight.items() if far < span})
        # A shorter stream sees the same, as far as it reaches.
        for old, new in zip(latest[position % period], sights, strict=False):
            assert old == {far: one for far, one in new.items() if far <= position - period}
        latest[position % period] = sights
    return latest


def export_onnx(
    model: SequenceModel, file: str | os.PathLike[str], *, num_tokens: int | None = None
) -> Path:
    """Write one decoding step as an ONNX file.

    Inputs: tokens [rows], position and the tensors of a state, all zero at first. Outputs: logits
    [rows, symbols], passes [rows, passes, symbols], and the state with `next_` before its names.
    """
    if not isinstance(model, SequenceModel):
        raise input_error("an exported model is a SequenceModel", type(model).__name__, "use one")
    import_extra("onnx", needed_for="an ONNX file", extra="onnx")
    step = DecodingStep(model, num_tokens=num_tokens)
    names, state = step.state_names, step.initial_state(1)
    after = [f"next_{name}" for name in names]
    Path(file).parent.mkdir(parents=True, exist_ok=True)
    by_row = {"tokens", "logits", "passes", *names[1:], *after[1:]}
    with inference(model), warnings.catch_warnings():
        # The exporter by tracing: a step has no branches, and the newer one takes ten times longer.
        # It warns of what it takes for constants: all shapes but the number of rows are.
        warnings.simplefilter("ignore")
        try:
            torch.onnx.export(
                step.eval(),
                (torch.zeros(1, dtype=torch.int64, device=state[0].device), *state),
                Path(file),
                input_names=["tokens", *names],
                output_names=["logits", "passes", *after],
                dynamic_axes={name: {0: "rows"} for name in by_row},
                opset_version=18,
                dynamo=False,
            )
        except (AssertionError, torch.onnx.OnnxExporterError) as error:
            rule = "blocks of an exported model must use operators that the exporter knows"
            raise input_error(rule, one_line(error), "write them with others") from error
    return Path(file)
