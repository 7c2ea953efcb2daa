"""A stream that takes one token of every row at a time, with few launches per token."""

import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor

from staircase_attention.attention import View
from staircase_attention.checks import InputError, input_error
from staircase_attention.engine.backend import can_run_on, compute_dtype, is_plain
from staircase_attention.engine.decoding.plan import (
    BANK_SEGMENTS,
    HEADER,
    DecodingPlan,
    Form,
    Layout,
    Planner,
    Sizes,
    measured,
    within,
)
from staircase_attention.engine.decoding.weights import Weights
from staircase_attention.engine.kernels.graphs import captured
from staircase_attention.layers import KeysValues
from staircase_attention.layers.positions import RotaryPositions
from staircase_attention.models.exits import ExitBackend
from staircase_attention.models.sequence_model import SequenceModel
from staircase_attention.models.state import State, Stream
from staircase_attention.schedules import CARRIED, Cell, joined, num_positions

if TYPE_CHECKING:
    from staircase_attention.engine.decoding.launches import Launch, Launches

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
ALL = slice(None)
# The first compute capability with programmatic dependent launch.
HOPPER = 9


class DecoderMemory:
    """What the kernels keep of a stream: keys and values in place, position, and plan."""

    def __init__(
        self, model: SequenceModel, stream: Stream, sizes: Sizes, dtype: torch.dtype
    ) -> None:
        config, schedule = model.config, model.schedule
        self.sizes = sizes
        self.num_rows, self.num_heads = len(stream.rows), config.num_heads
        self.num_groups, self.head_size = config.key_value_heads, config.head_size
        device = model.output.weight.device
        num_caches = 1 if schedule.shares_keys_values else config.num_layers
        per_row = (self.num_rows, self.num_groups)
        banks = (sum(config.depth), sizes.num_regions, *per_row, sizes.capacity, config.head_size)
        caches = (num_caches, *per_row, sizes.num_slots, config.head_size)
        # Keys and values: banks [layers, regions, rows, groups, capacity, size], and behind them
        # the cache [layers or 1, rows, groups, slots, size]; one allocation, so that a kernel
        # reaches both from one address.
        num_banks = torch.Size(banks).numel()
        memory = torch.zeros(2, num_banks + torch.Size(caches).numel(), dtype=dtype, device=device)
        self.keys, self.values = memory
        self._banks = memory[:, :num_banks].view(2, *banks)
        self._caches = memory[:, num_banks:].view(2, *caches)
        # On the device, because a captured graph reads them: the last kernel of a token moves the
        # position on, the host rewrites the plan between runs.
        self.position = torch.tensor([stream.position], dtype=torch.int64, device=device)
        # The rows of every pass that is taken at once.
        starts = [stream.starts] * sizes.num_passes
        self.starts = torch.tensor(starts, dtype=torch.int64, device=device)
        # What lagged passes begin with, in rings: that of position p at place p.
        rings = (sizes.num_passes, self.num_rows, sizes.num_carried, config.width)
        self.carried: Float[Tensor, "passes rows places width"] = torch.zeros(rings, device=device)
        num_segments = sizes.num_frozen + BANK_SEGMENTS
        row_size = HEADER + 3 * num_segments
        # Rows begin at multiples of 16 bytes, so that one compiled kernel serves all of them.
        shape = (sizes.num_steps, row_size + row_size % 2)
        self.plan = torch.zeros(shape, dtype=torch.int64, device=device)
        # A query is turned by its distance from a key as the last of `reach` keys is by its place.
        last = sizes.reach - 1
        view = View(num_queries=1, num_keys=1, first_query=last, device=torch.device("cpu"))
        found = RotaryPositions(head_size=config.head_size).turns(view)
        self.turns: Float[Tensor, "2 distances half"] = found.float().to(device)

    def bank_base(self, layer: int) -> int:
        """The first vector of a layer's banks."""
        return layer * self._banks[0, 0].numel() // self.head_size

    def cache_base(self, layer: int) -> int:
        """The first vector of a layer's cache."""
        return (self._banks[0].numel() + layer * self._caches[0, 0].numel()) // self.head_size

    def fill(self, stream: Stream, layout: Layout, rows: slice = ALL) -> None:
        """Copy the keys and values of a stream to these rows."""
        for key, memory, places in self._bank_parts(layout, stream.position):
            for target, held in zip(memory, stream.banks[key], strict=True):
                target[rows].index_copy_(2, places, held.detach().to(target))
        parts = zip(stream.cache, self._cache_parts(layout), strict=False)
        for cached, (memory, places) in parts:
            memory[:, rows].index_copy_(3, places, torch.stack(cached).detach().to(memory))

    def replace(self, row: int, stream: Stream, layout: Layout) -> None:
        """Replace a row by a stream of one row."""
        # What is hidden gets weight zero, but 0 times NaN is NaN.
        self._banks[:, :, :, row].zero_()
        self._caches[:, :, row].zero_()
        self.carried[:, row].zero_()
        self.starts[:, row] = stream.starts[0]
        self.fill(stream, layout, slice(row, row + 1))

    def stream(self, begun: Stream, layout: Layout, position: int) -> Stream:
        """What the model's own stream would be at a position."""

        def read(memory: Iterable[Tensor], places: Tensor) -> KeysValues:
            return KeysValues(*(one.index_select(2, places).to(self.keys) for one in memory))

        parts = self._bank_parts(layout, position)
        return replace(
            begun,
            position=position,
            banks={key: read(memory, places) for key, memory, places in parts},
            cache=tuple(read(*part) for part in self._cache_parts(layout)),
            cached=joined(range(one.position, one.position + one.length) for one in layout.cached),
        )

    def _bank_parts(
        self, layout: Layout, position: int
    ) -> Iterator[tuple[tuple[int, int], Iterable[Tensor], Tensor]]:
        """The number and layer of each bank, its memory 2 x [rows, ...], its tokens' places."""
        lagged = sorted(bank for bank, layer in layout.banks if layer == CARRIED)
        for (bank, layer), num_held in layout.banks.items():
            held = torch.arange(position - num_held, position, device=self.keys.device)
            if layer == CARRIED:
                memory = self.carried[lagged.index(bank), :, None]
                yield (bank, layer), (memory, memory[..., :0]), held % self.sizes.num_carried
            else:
                memory = self._banks[:, layer, layout.regions[bank]]
                yield (bank, layer), memory, held % self.sizes.capacity

    def _cache_parts(self, layout: Layout) -> Iterator[tuple[Tensor, Tensor]]:
        """The memory of each layer's cache, and the places of its tokens."""
        runs = [torch.arange(one.place, one.place + one.length) for one in layout.cached]
        if runs:
            places = torch.cat(runs).to(self.keys.device)
            for layer in range(self._caches.shape[1]):
                yield self._caches[:, layer], places


class Decoder:
    """A model and a state of it, prepared for single tokens.

    It computes what the model itself would, up to rounding, with hidden vectors in float32. Weights
    are read when it is created: make another when they have changed. It updates its own memory in
    place; `state()` returns an ordinary state at any moment. On a GPU a token is a captured graph.
    """

    def __init__(
        self,
        model: SequenceModel,
        state: State,
        *,
        weights: Weights | None = None,
        capture: bool = True,
        early: bool | None = None,
        slack: int = 0,
    ) -> None:
        if not self.fits(model, state):
            raise InputError(
                "Decoder needs a model with a bounded state in bfloat16, float16 or float32 on a "
                "GPU, and a state of that model with one stream; call the model itself where "
                "Decoder.fits(model, state) is False"
            )
        dtype = compute_dtype(model.output.weight)
        device = model.output.weight.device
        self._model = model
        self._given = replace(state, streams=())
        # On a CPU, where there is no device to choose, this does nothing.
        self._device = torch.cuda.device(device.index if device.type == "cuda" else -1)
        self.is_captured = capture and device.type == "cuda"
        """Whether a token is one graph."""
        if early is None:
            early = device.type == "cuda" and torch.cuda.get_device_capability(device)[0] >= HOPPER
        self._early = early
        self._planner = Planner(model.schedule, model.config.depth)
        # What is made in inference mode could not be part of anything that is differentiated.
        with torch.inference_mode(mode=False), torch.no_grad():
            if weights is None or not weights.serve(model, dtype):
                weights = Weights.of(model, dtype)
            self.weights = weights
            sizes = measured(model.schedule, model.config.depth)
            # Taking tokens back needs what they would have overwritten.
            sizes = sizes._replace(
                capacity=sizes.capacity + slack, num_carried=sizes.num_carried + slack
            )
            self._begin(state.streams[0], sizes)

    @staticmethod
    def fits(model: object, state: object) -> bool:
        """Whether a decoder can continue from this state as the model would."""
        if not isinstance(model, SequenceModel) or not isinstance(state, State):
            return False
        here = model.output.weight
        if not can_run_on(here.device):
            return False
        dtype = compute_dtype(here)
        is_casting = torch.is_autocast_enabled(here.device.type)
        return (
            is_plain(model)
            and can_decode(model)
            and model.config.head_size % 2 == 0
            and model.schedule.is_state_bounded
            and dtype in DTYPES
            and state.model == model.signature
            and len(state.streams) == 1
            and state.streams[0].rows == tuple(range(state.batch_size))
            and (is_casting or not state.dtypes - {dtype})
            and not state.devices - {here.device}
        )

    @property
    def batch_size(self) -> int:
        """Rows in the batch."""
        return self._memory.num_rows

    @property
    def num_kernels(self) -> int:
        """Kernels per token."""
        return len(list(self._launches(1).all(self._plan.form)))

    @property
    def room(self) -> int:
        """Tokens per row that one step can take: up to the end of the present run.

        One where passes lag: a token's passes begin with what the token before left.
        """
        lags = self._sizes.num_passes > 1
        return 1 if lags else max(1, self._plan.run.stop - self._position)

    def step(
        self, tokens: Int[Tensor, "batch ..."], most_passes: int | None = None
    ) -> Float[Tensor, "batch ... output"]:
        """Logits after one more token of every row, in float32; the next step overwrites them.

        Or after several, `room` at most, of which each sees those before it. After `most_passes`
        they are drafts, and have to be taken back. Passes that are taken at once are all made.
        """
        number = tokens[0].numel() if tokens.dim() else 0
        is_known = tokens.shape[:1] == (self.batch_size,) and 1 <= number <= self.room
        if not is_known or tokens.dim() > 2:  # noqa: PLR2004
            raise input_error(
                f"a step takes one token for each of the {self.batch_size} rows",
                f"shape {tuple(tokens.shape)}",
                f"pass tokens of shape ({self.batch_size},)",
            )
        with torch.no_grad(), self._device:
            # The next run did not fit when it was planned.
            if self._position == self._plan.run.stop:
                self._grow()
            run = self._program(number, most_passes)
            self._launches(number).tokens.copy_(tokens.flatten())
            run()
        self._position += number
        if self._position == self._plan.run.stop:
            # While the device computes: on the host this takes some microseconds per step.
            self._plan_next()
        return self._launches(number).logits.view(*tokens.shape, -1)

    def undo(self, number: int = 1) -> None:
        """Take back the latest token, or several of one run if there is slack.

        No later step reads what they wrote.
        """
        self._position -= number
        with torch.no_grad():
            self._memory.position.sub_(number)
        if self._position < self._plan.run.start:
            # The plan of the next run was entered early, at the end of the step.
            assert self._previous is not None
            self._enter(self._previous)

    def state(self) -> State:
        """Where the stream stands, as the model itself would return it: a copy."""
        layout = self._planner.layout_at(self._plan, self._position)
        with torch.inference_mode(mode=False), torch.no_grad():
            stream = self._memory.stream(self._begun, layout, self._position)
        return replace(self._given, streams=(stream,))

    def _begin(self, stream: Stream, sizes: Sizes) -> None:
        """Continue from a stream, in memory of at least these sizes."""
        model = self._model
        self._begun = replace(stream, banks={}, cache=())
        self._position = stream.position
        layout = Layout.of(stream)
        self._sizes = sizes | self._planner.plan(layout, stream.position).sizes
        self._memory = DecoderMemory(model, stream, self._sizes, self.weights.dtype)
        self._memory.fill(stream, layout)
        self._scratch: dict[int, Launches] = {}
        self._programs: dict[tuple[Form, int, int | None], Callable[[], object]] = {}
        """What computes some tokens of each row, for each form of their steps."""
        self._previous: DecodingPlan | None = None
        self._enter(self._planner.plan(layout, stream.position, self._sizes.capacity))
        with self._device:
            self._program()

    def _plan_next(self) -> None:
        """Go on to the next run, unless it needs more room than there is."""
        plan = self._planner.plan(self._plan.after, self._position, self._sizes.capacity)
        if plan.sizes | self._sizes == self._sizes:
            self._previous = self._plan
            self._enter(plan)

    def _enter(self, plan: DecodingPlan) -> None:
        self._plan = plan
        rows = torch.tensor(plan.rows(self._sizes, self.batch_size))
        with torch.no_grad():
            # From pageable memory, which may be reused at once; the copy is queued on the device.
            target = self._memory.plan[: len(rows), : rows.shape[1]]
            target.copy_(rows, non_blocking=True)

    def _grow(self) -> None:
        """Make room for a run that needs more than any before it."""
        plan = self._planner.plan(self._plan.after, self._position)
        with torch.inference_mode(mode=False):
            twice = Sizes(*(2 * size for size in plan.sizes))._replace(num_passes=1)
            self._begin(self.state().streams[0], self._sizes | twice)

    def put(self, row: int, stream: Stream) -> bool:
        """Let a row continue from a stream of one row; False if its past does not fit."""
        here = self._position
        layout, behind = self._planner.layout_at(self._plan, here), here - stream.position
        layers = [[layer for _, layer in sorted(held)] for held in (layout.banks, stream.banks)]
        if behind < 0 or behind % self._given.chunk_length or layers[0] != layers[1]:
            return False
        stream = stream.shifted(here, layout.banks)
        num_held = {key: held.num_tokens for key, held in stream.banks.items()}
        cached = within(layout.cached, stream.cached)
        num_cached = sum(one.length for one in cached)
        is_longer = any(number > layout.banks[key] for key, number in num_held.items())
        if is_longer or num_cached < num_positions(stream.cached):
            return False
        with torch.no_grad():
            self._memory.replace(row, stream, Layout(num_held, layout.regions, cached))
        starts = list(self._begun.starts)
        starts[row] = stream.starts[0]
        self._begun = replace(self._begun, starts=tuple(starts))
        return True

    def _launches(self, number: int) -> "Launches":
        """What takes `number` tokens of each row to their logits."""
        # Triton is imported where it is used: it may not be installed.
        from staircase_attention.engine.decoding.launches import Launches

        if number not in self._scratch:
            self._scratch[number] = Launches(
                self.weights,
                self._memory,
                attends_self=self._planner.attends_self,
                early=self._early,
                num_tokens=number,
            )
        return self._scratch[number]

    def _program(self, number: int = 1, most_passes: int | None = None) -> Callable[[], object]:
        """What computes some tokens of the present run."""
        form = self._plan.form, number, most_passes
        if form not in self._programs:
            launches = list(self._launches(number).all(self._plan.form, most_passes))
            self._programs[form] = partial(_run_all, launches)
            if self.is_captured:
                try:
                    self._programs[form] = self._captured(launches, number)
                except RuntimeError as error:
                    self.is_captured = False
                    warnings.warn(
                        f"tokens are decoded without a captured graph: {error}", stacklevel=4
                    )
        return self._programs[form]

    def _captured(self, launches: "list[Launch]", number: int) -> Callable[[], object]:
        """Launches as one graph."""
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            # Compiles all kernels, which a capture cannot. What they write lies where the next
            # token will be; the position that they moved on is moved back.
            _run_all(launches)
            self._memory.position.sub_(number)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with captured(graph):
            _run_all(launches)
        return partial(_replay, graph, launches)


def can_decode(model: SequenceModel) -> bool:
    """Whether the kernels compute what this model does."""
    config, schedule = model.config, model.schedule
    is_outer = config.injection != "none" or sum(config.depth) > config.num_layers
    # The launches of such layers are those of layers that see themselves by their own projections.
    is_usual = schedule.attends_self and not (schedule.shares_keys_values or schedule.mixes_layers)
    steps = list(schedule.steps(range(2), num_layers=config.num_layers, order="window"))
    if any(step.lags for step in steps):
        # One batch: all passes but the first lag, and else they are as it is.
        first, is_outer = steps[0], True
        cells = [Cell(chunk=0, pass_number=n + 1, tokens=range(2)) for n in range(len(steps))]
        is_usual &= steps == [
            replace(first, index=n, bank=first.bank + n, cells=(cell,), lags=n > 0)
            for n, cell in enumerate(cells)
        ]
    is_other = config.qk_norm or isinstance(model.backend, ExitBackend)
    return not is_other and (is_usual or not is_outer)


def _run_all(launches: "list[Launch]") -> None:
    for launch in launches:
        launch()


def _replay(graph: torch.cuda.CUDAGraph, _: "list[Launch]") -> None:
    # A graph knows addresses only. The launches own the memory behind them: scratch that has grown
    # since is held by nobody else.
    graph.replay()
