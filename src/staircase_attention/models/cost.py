"""What a model costs before it is built: parameters, operations, steps and state.

All of it follows from the timetable and the shapes of the core. Operations are counted as PyTorch's
flop counter does: two for each multiply-add of a matrix product.
"""

import copy
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import torch

from staircase_attention.attention import View
from staircase_attention.checks import check_integer
from staircase_attention.layers import Block, CoreConfig
from staircase_attention.models.sequence_model import SequenceModel, without_weights
from staircase_attention.schedules import CARRIED, Ledger, Schedule, Step, num_positions


@dataclass(frozen=True, kw_only=True, slots=True)
class StepSize:
    """What one step computes for one batch row."""

    num_layers: int
    num_queries: int
    num_keys: int
    """Past and own ones together; without any, attention is left out."""
    num_distances: int
    num_cached: int
    """Tokens that leave keys and values in the cache."""
    num_injected: int
    """Tokens that see again what entered the recurrence."""
    attends_self: bool
    """Whether the queries make keys and values of their own."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """What a model costs: its parameters, and one batch row's segment of a stream."""

    num_parameters: int
    start: int
    """Position in the stream at which the segment begins."""
    segment: int
    """Tokens in the segment."""
    flops: int
    """Forward operations of the segment; training costs about three times as many."""
    steps: tuple[StepSize, ...]
    """Sequential steps of the segment, in window order."""
    state_numbers: int
    """Numbers in the state at the end of the segment."""
    most_state_numbers: int
    """The largest number while the next chunk arrives."""

    @property
    def num_steps(self) -> int:
        """Sequential steps per segment."""
        return len(self.steps)


def measure_cost(
    *,
    vocab_size: int,
    core: CoreConfig | Iterable[Block],
    schedule: Schedule,
    segment: int,
    output_size: int | None = None,
    start: int | None = None,
) -> Cost:
    """The cost of the tokens from `start` on, when all before them came as one segment.

    Without a start, enough came before for the window to be full.
    """
    check_integer("segment", segment, minimum=1, example=256)
    if start is None:
        # In whole segments: the next one costs what any later one does.
        start = -(-schedule.default_max_distance // segment) * segment
    with without_weights():
        model = SequenceModel(
            vocab_size=vocab_size, core=core, schedule=schedule, output_size=output_size
        )
    core, ledger = model.config, Ledger(attends_self=schedule.attends_self)
    # What each layer remembers of a token.
    sizes = [heads * (key + value) for heads, key, value in model.memory_shapes]
    sizes = sizes or [2 * core.key_value_width] * sum(core.depth)
    # Steps that were taken before leave what the first step here finds.
    _walk(ledger, schedule, core, range(start))
    walked = _walk(ledger, schedule, core, range(start, start + segment))
    steps = tuple(_step_size(core, schedule, step, held) for step, held in walked)
    flops = sum(_step_flops(core, schedule, step) for step in steps)
    flops += segment * 2 * core.width * model.output_size
    if model.memory_shapes:
        flops = _counted_flops(model, start, segment)
    state_numbers = list(_state_numbers(sizes, core, schedule, ledger, start + segment))
    return Cost(
        num_parameters=model.num_parameters,
        start=start,
        segment=segment,
        flops=flops,
        steps=steps,
        state_numbers=state_numbers[0],
        most_state_numbers=max(state_numbers),
    )


def _walk(
    ledger: Ledger, schedule: Schedule, core: CoreConfig, tokens: range
) -> list[tuple[Step, range]]:
    phases = schedule.phases(tokens, depth=core.depth, order="window")
    return list(ledger.follow(chain.from_iterable(phases)))


def _step_size(core: CoreConfig, schedule: Schedule, step: Step, held: range) -> StepSize:
    queries = step.tokens
    attends_self = schedule.attends_self or step.span is not None
    own = queries.stop if attends_self else queries.start
    # On the meta device a view has a shape and no memory.
    view = View.of(
        queries=queries,
        keys=(*step.frozen, range(held.start, own)),
        span=step.span or schedule.attention_span,
        device=torch.device("meta"),
    )
    return StepSize(
        num_layers=len(step.layers),
        num_queries=len(queries),
        num_keys=view.num_keys,
        num_distances=view.num_distances,
        num_cached=sum(len(cell.tokens) for cell in step.cells if cell.cached),
        num_injected=0
        if core.injection == "none"
        else sum(len(cell.tokens) for cell in step.cells if cell.pass_number > 1),
        attends_self=attends_self,
    )


def _step_flops(core: CoreConfig, schedule: Schedule, step: StepSize) -> int:
    """All layers of one step: projections and feed-forward per query, attention, the cache."""
    # Queries and outputs, then keys and values.
    projected = 2 * core.width + (2 * core.key_value_width if step.attends_self else 0)
    # Scores and the weighted sum, and where there is a table a score for every distance.
    num_columns = 2 * step.num_keys
    num_columns += step.num_distances if core.positions == "relative" else 0
    if step.num_keys == 0:
        # Where there is nothing to attend to, the whole sublayer is left out.
        projected = num_columns = 0
    num_matrices = 3 if core.feed_forward == "swiglu" else 2
    per_query = projected + num_matrices * core.inner_width + num_columns
    layer = step.num_queries * 2 * core.width * per_query
    gates = step.num_injected * 2 * core.width**2 if core.injection == "gated" else 0
    # Per cached token: keys and values, for each layer or once for all, and the mixture.
    num_pairs = 1 if schedule.shares_keys_values else core.num_layers
    mixture = 2 * core.width * (core.num_layers + 1) if schedule.mixes_layers else 0
    caching = 2 * 2 * core.width * core.key_value_width * num_pairs + mixture
    return step.num_layers * layer + step.num_cached * caching + gates


def _counted_flops(model: SequenceModel, start: int, segment: int) -> int:
    """Operations of a user's own blocks, as PyTorch's counter finds them on the meta device."""
    # Imported where it is used, since it takes a second.
    from torch.utils.flop_counter import FlopCounterMode

    tokens = torch.zeros(1, start + segment, dtype=torch.int64, device="meta")
    # Blocks may have been made before, and elsewhere.
    model = copy.deepcopy(model).to("meta")
    with torch.no_grad():
        _, state = model(tokens[:, :start])
        with FlopCounterMode(display=False) as counter:
            model(tokens[:, start:], state)
    return int(counter.get_total_flops())


def _state_numbers(
    sizes: Sequence[int], core: CoreConfig, schedule: Schedule, ledger: Ledger, position: int
) -> Iterator[int]:
    """Numbers in the state, now and whenever it may be largest while the next chunk arrives.

    They are keys and values in all banks and in the cache, and what passes carry on; `sizes` are
    those of a token in each layer. Every token of a chunk adds to the state, until the last one
    drops some of it. So it is largest now, before such a last token, after it, or at the end.
    """
    length = schedule.chunk_length
    chunk_end = (position // length + 1) * length
    num_pairs = 1 if schedule.shares_keys_values else core.num_layers
    for stop in (position, chunk_end - 1, chunk_end, position + length):
        _walk(ledger, schedule, core, range(position, stop))
        position = stop
        banks = sum(
            core.width if layer == CARRIED else sizes[layer] * number
            for (_, layer), number in ledger.banks.items()
        )
        yield banks + sum(sizes[:num_pairs]) * num_positions(ledger.cached)
