"""The model a user builds: tokens in, logits and state out, whatever the schedule."""

import copy
import functools
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, ParamSpec, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from staircase_attention.checks import check_choice, check_integer, input_error
from staircase_attention.layers import Block, Core, CoreConfig
from staircase_attention.layers.block import checked_blocks, make_blocks, memory_shape
from staircase_attention.layers.embedding import Embedding, check_tokens
from staircase_attention.layers.layer import make_norm
from staircase_attention.layers.positions import RelativePositions
from staircase_attention.models.backend import Backend, PlainBackend
from staircase_attention.models.executor import Executor, Watch
from staircase_attention.models.state import STATE_RULE, State, Stream
from staircase_attention.schedules import SCHEDULES, Order, Schedule, check_steps

Given = ParamSpec("Given")
Made = TypeVar("Made")


def left_uncompiled(method: Callable[Given, Made]) -> Callable[Given, Made]:
    """As torch.compiler.disable, which imports the compiler for seconds even where none is used."""
    marked: list[Callable[Given, Made]] = []

    @functools.wraps(method)
    def call(*arguments: Given.args, **options: Given.kwargs) -> Made:
        if "torch._dynamo" not in sys.modules:
            return method(*arguments, **options)
        if not marked:
            marked.append(torch.compiler.disable(method))  # type: ignore[no-untyped-call]
        return marked[0](*arguments, **options)

    return call


class _NothingDrawn(TorchFunctionMode):
    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        given = kwargs or {}
        if func is nn.init.normal_:
            return args[0] if args else given["tensor"]
        return func(*args, **given)


@contextmanager
def without_weights() -> Iterator[None]:
    """Models are made on the meta device: they take no memory, whatever their size.

    Normal numbers are not drawn: on that device it imports the compiler, for seconds.
    """
    with torch.device("meta"), _NothingDrawn():
        yield


class SequenceModel(nn.Module):
    """A Transformer core between an embedding and a projection, driven by a timetable.

    >>> from staircase_attention import CoreConfig, SequenceModel, Staircase
    >>> model = SequenceModel(
    ...     vocab_size=10,
    ...     core=CoreConfig(width=16, num_layers=2, num_heads=2),
    ...     schedule=Staircase(chunk_size=4, num_passes=3),
    ... )
    >>> logits, state = model(torch.zeros(1, 7, dtype=torch.int64))
    >>> logits.shape
    torch.Size([1, 7, 10])
    """

    def __init__(
        self,
        *,
        vocab_size: int,
        core: CoreConfig | Iterable[Block] | Core,
        schedule: Schedule,
        output_size: int | None = None,
    ) -> None:
        super().__init__()
        output_size = vocab_size if output_size is None else output_size
        check_integer("vocab_size", vocab_size, minimum=1, example=256)
        check_integer("output_size", output_size, minimum=1, example=256)
        blocks: list[Block] = []
        made = core if isinstance(core, Core) else None
        if made is not None:
            core = made.config
        elif not isinstance(core, CoreConfig):
            blocks = checked_blocks(core)
            core = CoreConfig(width=blocks[0].width, num_layers=len(blocks), num_heads=1)
        elif core.reference is not None:
            blocks = checked_blocks(make_blocks(core))
        _check_schedule(schedule, core)
        self.config = core
        self.schedule = schedule
        self.vocab_size = vocab_size
        self.output_size = output_size
        self.embedding: nn.Embedding = Embedding(vocab_size, core.width)
        self.core = made or Core(
            core,
            max_distance=core.max_distance or schedule.default_max_distance,
            attends_self=schedule.attends_self,
            mixes_layers=schedule.mixes_layers,
            shares_keys_values=schedule.shares_keys_values,
            blocks=nn.ModuleList(blocks),
        )
        own = blocks if made is None else made.blocks
        self.memory_shapes = [list(memory_shape(block)) for block in own]
        """Of blocks that are not the family's: what each remembers of a token."""
        self.output_norm = make_norm(core, core.width)
        self.output = nn.Linear(core.width, output_size)
        self.backend: Backend = PlainBackend()
        """What runs the core; see `staircase_attention.engine.accelerate`."""
        self.recompute = False
        """Whether to compute activations again in the backward pass: less memory, more time."""
        self.gradient_passes: int | None = None
        """How many last passes gradients flow through; None: all."""
        self.draft_passes: int | None = None
        """How many first passes are made; None: all. Later passes find no trace of the tokens, so
        that the state serves the drafts that follow in the same chunk, and nothing else."""
        self.outside_span: int | None = None
        """Positions that prelude and coda see; None: as many as the recurrence can reach."""

    def forward(
        self,
        tokens: Int[Tensor, "batch time"],
        state: State | None = None,
        *,
        order: Order = "window",
        watch: Watch | None = None,
    ) -> tuple[Float[Tensor, "batch time output"], State]:
        """Logits for every token, and the state from which the stream continues.

        Both orders compute the same function: `window` takes as many tokens per step as the
        schedule allows, `chunk` one chunk at a time, which needs less memory without gradients.
        `watch` is called after every step; see `staircase_attention.inspect`.
        """
        hidden, state = self.hidden(tokens, state, order=order, watch=watch)
        return self.output(hidden), state

    # A timetable is Python code that is different at every position. A model that is compiled as
    # a whole leaves it as it is.
    @left_uncompiled
    def hidden(
        self,
        tokens: Int[Tensor, "batch time"],
        state: State | None = None,
        *,
        order: Order = "window",
        watch: Watch | None = None,
    ) -> tuple[Float[Tensor, "batch time width"], State]:
        """What the output projection turns into logits; tokens may also be given as vectors."""
        if not isinstance(tokens, Tensor) or tokens.dim() != 3:  # noqa: PLR2004
            check_tokens(tokens, self.vocab_size)
        check_choice("order", order, ("window", "chunk"))
        if state is None:
            state = self.initial_state(tokens.shape[0])
        self._check_state(state, tokens)
        # Rows that were reset inside a chunk are other streams, with timetables of their own.
        is_alone = len(state.streams) == 1
        outputs, streams = [], []
        for stream in state.streams:
            own = tokens if is_alone else tokens[list(stream.rows)]
            embedded = self.embed(own, stream)
            executor = Executor(self, stream, embedded, watch)
            for steps in executor.phases(order):
                embedded = executor.run(embedded, steps)
            outputs.append(embedded)
            streams.append(executor.stream())
        hidden = outputs[0]
        if not is_alone:
            rows = torch.tensor([row for stream in streams for row in stream.rows])
            hidden = torch.cat(outputs)[rows.argsort().to(tokens.device)]
        return self.output_norm(hidden), replace(state, streams=tuple(streams))

    def embed(self, tokens: Tensor, stream: Stream) -> Float[Tensor, "rows time width"]:
        """What enters the first layer, for tokens that may also be given as vectors."""
        del stream  # other models read positions
        embedded = self.embedding(tokens) if tokens.dim() == 2 else tokens  # noqa: PLR2004
        return functional.dropout(embedded, self.config.embedding_dropout, self.training)

    def with_schedule(self, schedule: Schedule) -> "SequenceModel":
        """A model with another timetable and the same parameters, which both models share.

        >>> from staircase_attention import CoreConfig, SequenceModel, Staircase
        >>> core = CoreConfig(width=16, num_layers=2, num_heads=2, max_distance=64)
        >>> schedule = Staircase(chunk_size=4, num_passes=3)
        >>> model = SequenceModel(vocab_size=10, core=core, schedule=schedule)
        >>> more = model.with_schedule(Staircase(chunk_size=4, num_passes=8))
        >>> more.output.weight is model.output.weight
        True
        """
        _check_schedule(schedule, self.config)
        for fact in ("mixes_layers", "shares_keys_values"):
            mine, other = getattr(self.schedule, fact), getattr(schedule, fact)
            if mine != other:
                rule = f"with_schedule takes a schedule with {fact} = {mine}, as the parameters"
                raise input_error(rule, f"{schedule}", "train a model with that schedule")
        config = self.config
        if isinstance(self.core.positions, RelativePositions):
            num_rows = self.core.positions.table.shape[0]
            # A model whose table is shorter than its own reach was built to clip distances.
            if self.schedule.default_max_distance <= num_rows < schedule.default_max_distance:
                rule = f"{schedule} needs a position table of {schedule.default_max_distance} rows"
                received = f"one of {num_rows}"
                raise input_error(rule, received, "train with a larger model.core.max_distance")
            config = replace(config, max_distance=num_rows)
        model, core = copy.copy(self), copy.copy(self.core)
        # A shallow copy shares its dictionary of modules: give each model its own.
        model._modules = {**self._modules, "core": core}
        model.config, model.schedule = config, schedule
        core.attends_self = schedule.attends_self
        return model

    def initial_state(self, batch_size: int) -> State:
        """The state of streams that have not begun."""
        check_integer("batch_size", batch_size, minimum=1, example=2)
        streams = (Stream.fresh(range(batch_size)),)
        return State(model=self.signature, chunk_length=self.schedule.period, streams=streams)

    @property
    def num_cut(self) -> int:
        """First passes through which no gradients flow."""
        if self.gradient_passes is None:
            return 0
        return max(0, getattr(self.schedule, "num_passes", 0) - self.gradient_passes)

    @property
    def num_parameters(self) -> int:
        """Learned numbers."""
        return sum(parameter.numel() for parameter in self.parameters())

    @property
    def signature(self) -> dict[str, Any]:
        """What a state of this model can be used with, as plain data."""
        core = self.config
        shape = {
            "schedule": self.schedule.to_dict(),
            "width": core.width,
            "num_layers": core.num_layers,
            "num_heads": core.num_heads,
            "positions": core.positions,
        }
        newer = {
            "memory_shapes": self.memory_shapes,
            "num_key_value_heads": core.key_value_heads % core.num_heads,
            "num_prelude_layers": core.num_prelude_layers,
            "num_coda_layers": core.num_coda_layers,
        }
        # States that are older than these settings do not have them.
        return shape | {name: value for name, value in newer.items() if value}

    def _check_state(self, state: State, tokens: Int[Tensor, "batch time"]) -> None:
        own = "pass this model's own state, or none to restart"
        if not isinstance(state, State):
            raise input_error(STATE_RULE, type(state).__name__, own)
        if state.model != self.signature:
            rule = f"a state must be of a model of the same shape, {describe(self.signature)}"
            raise input_error(rule, describe(state.model), own)
        if state.batch_size != tokens.shape[0]:
            rule = f"a state must have the batch size of the tokens, {tokens.shape[0]}"
            raise input_error(rule, state.batch_size, "use state.select(rows), or none to restart")
        state.check_placed(self.output.weight)


def _check_schedule(schedule: object, core: CoreConfig) -> None:
    if not isinstance(schedule, Schedule):
        remedy = "use for example Staircase(chunk_size=64, num_passes=4)"
        raise input_error("schedule must be a Schedule", repr(schedule), remedy)
    schedule.check_core(num_layers=core.num_layers)
    if type(schedule) not in SCHEDULES.values():
        check_steps(schedule, core.num_layers)


def describe(signature: Mapping[str, Any]) -> str:
    """A model's shape in one line."""
    facts = dict(signature)
    options = dict(facts.pop("schedule", {}))
    name = options.pop("name", options.pop("reference", "an unknown model"))
    inner = ", ".join(f"{key}={value}" for key, value in (options | facts).items())
    return f"{name} ({inner})"
