"""The model a user builds: tokens in, logits and state out, whatever the schedule."""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from staircase_attention.layers import Core, CoreConfig
from staircase_attention.models.executor import Executor
from staircase_attention.models.state import State, Stream
from staircase_attention.schedules import Order, Schedule


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
        core: CoreConfig,
        schedule: Schedule,
        output_size: int | None = None,
    ) -> None:
        super().__init__()
        output_size = vocab_size if output_size is None else output_size
        check_sizes(vocab_size=vocab_size, output_size=output_size)
        check_parts(core, schedule)
        schedule.check_core(num_layers=core.num_layers)
        self.config = core
        self.schedule = schedule
        self.vocab_size = vocab_size
        self.output_size = output_size
        self.embedding = nn.Embedding(vocab_size, core.width)
        self.core = Core(
            core,
            max_distance=core.max_distance or schedule.default_max_distance,
            attends_self=schedule.attends_self,
            mixes_layers=schedule.mixes_layers,
            shares_keys_values=schedule.shares_keys_values,
        )
        self.output_norm = nn.LayerNorm(core.width)
        self.output = nn.Linear(core.width, output_size)

    def forward(
        self,
        tokens: Int[Tensor, "batch time"],
        state: State | None = None,
        *,
        order: Order = "window",
    ) -> tuple[Float[Tensor, "batch time output"], State]:
        """Logits for every token, and the state from which the stream goes on.

        Both orders compute the same function: `window` takes as many tokens a step as the schedule
        allows, `chunk` one chunk at a time with bounded memory, for long streams without gradients.
        """
        check_tokens(tokens, self.vocab_size)
        check_order(order)
        if state is None:
            state = self.initial_state(tokens.shape[0])
        self._check_state(state, tokens)
        hidden, streams = self._run_streams(tokens, state, order)
        logits = self.output(self.output_norm(hidden))
        return logits, State(model=state.model, chunk_length=state.chunk_length, streams=streams)

    def initial_state(self, batch_size: int) -> State:
        """The state of streams that have not begun."""
        return State.fresh(
            model=self.signature,
            chunk_length=self.schedule.chunk_length,
            batch_size=batch_size,
        )

    @property
    def num_parameters(self) -> int:
        """Learned numbers."""
        return sum(parameter.numel() for parameter in self.parameters())

    @property
    def signature(self) -> dict[str, Any]:
        """What a state of this model can be used with, as plain data."""
        core = self.config
        return {
            "schedule": self.schedule.to_dict(),
            "width": core.width,
            "num_layers": core.num_layers,
            "num_heads": core.num_heads,
            "positions": core.positions,
        }

    def _run_streams(
        self, tokens: Int[Tensor, "batch time"], state: State, order: Order
    ) -> tuple[Float[Tensor, "batch time width"], tuple[Stream, ...]]:
        if len(state.streams) == 1:
            hidden, stream = self._run(tokens, state.streams[0], order)
            return hidden, (stream,)
        rows = [torch.tensor(stream.rows, device=tokens.device) for stream in state.streams]
        results = [
            self._run(tokens[own], stream, order)
            for own, stream in zip(rows, state.streams, strict=True)
        ]
        places = torch.cat(rows).argsort()
        return torch.cat([hidden for hidden, _ in results])[places], tuple(
            stream for _, stream in results
        )

    def _run(
        self, tokens: Int[Tensor, "rows time"], stream: Stream, order: Order
    ) -> tuple[Float[Tensor, "rows time width"], Stream]:
        embedded = functional.dropout(
            self.embedding(tokens), self.config.embedding_dropout, self.training
        )
        executor = Executor(self.core, self.schedule, stream, embedded)
        positions = range(stream.position, stream.position + tokens.shape[1])
        hidden = executor.run(
            self.schedule.steps(positions, num_layers=self.config.num_layers, order=order)
        )
        return hidden, executor.stream(stream)

    def _check_state(self, state: State, tokens: Int[Tensor, "batch time"]) -> None:
        if not isinstance(state, State):
            raise TypeError(
                f"state must be a State that a model gave back, got {type(state).__name__}; "
                "pass the second value of model(tokens), or leave it out to begin anew"
            )
        if state.model != self.signature:
            raise ValueError(
                f"a state belongs to models of one shape; got one of {describe(state.model)} for "
                f"{describe(self.signature)}; pass this model's own state, or none to begin anew"
            )
        if state.batch_size != tokens.shape[0]:
            raise ValueError(
                f"tokens and state must have the same batch size, got {tokens.shape[0]} and "
                f"{state.batch_size}; use state.select(rows), or begin anew without a state"
            )
        here = self.output.weight
        if state.dtype not in (None, here.dtype) and not torch.is_autocast_enabled(
            here.device.type
        ):
            raise ValueError(
                f"state and model must be of one dtype, got {state.dtype} and {here.dtype}; "
                f"use state.to(dtype={here.dtype})"
            )
        if state.device not in (None, here.device):
            raise ValueError(
                f"state and model must be on one device, got {state.device} and {here.device}; "
                f"use state.to('{here.device}')"
            )


def describe(signature: Any) -> str:  # noqa: ANN401
    """A model's shape in one line."""
    facts = dict(signature)
    options = dict(facts.pop("schedule", {}))
    name = options.pop("name", "an unknown model")
    inner = ", ".join(f"{key}={value}" for key, value in (options | facts).items())
    return f"{name} ({inner})"


def check_parts(core: CoreConfig, schedule: Schedule) -> None:
    """Refuse parts that are not what their names say."""
    for part, kind, name in ((core, CoreConfig, "core"), (schedule, Schedule, "schedule")):
        if not isinstance(part, kind):
            raise TypeError(
                f"{name} must be a {kind.__name__}, got {part!r}; build one, as {EXAMPLES[name]}"
            )


EXAMPLES = {
    "core": "CoreConfig(width=512, num_layers=8, num_heads=8)",
    "schedule": "Staircase(chunk_size=64, num_passes=4)",
}


def check_sizes(**sizes: int) -> None:
    """Refuse numbers of symbols that are not whole and positive."""
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int):
            raise TypeError(f"{name} must be a whole number, got {size!r}; give one, as 256")
        if size < 1:
            raise ValueError(f"{name} must be at least 1, got {size}; give the symbols there are")


def check_order(order: str) -> None:
    """Refuse an unknown way of walking the timetable."""
    if order not in ("window", "chunk"):
        raise ValueError(f"order must be 'window' or 'chunk', got {order!r}; choose one of these")


def check_tokens(tokens: Tensor, vocab_size: int) -> None:
    """Refuse tokens that are not a batch of symbols of the vocabulary."""
    if not isinstance(tokens, Tensor) or tokens.dtype not in (torch.int64, torch.int32):
        kind = tokens.dtype if isinstance(tokens, Tensor) else type(tokens).__name__
        raise TypeError(
            f"tokens must be a tensor of int64 or int32, got {kind}; convert with tokens.long()"
        )
    if tokens.dim() != 2 or tokens.shape[0] == 0:  # noqa: PLR2004
        raise ValueError(
            f"tokens must be batch x time with at least one row, got shape {tuple(tokens.shape)}; "
            "for one sequence use tokens[None]"
        )
    # A check of the values waits for the device, which a graph under capture cannot.
    if tokens.numel() == 0 or torch.compiler.is_compiling() or _is_capturing(tokens.device):
        return
    low, high = (int(bound) for bound in tokens.aminmax())
    if low < 0 or high >= vocab_size:
        raise ValueError(
            f"token ids must be from 0 to vocab_size - 1 = {vocab_size - 1}, "
            f"got ids from {low} to {high}; check the tokeniser, or build with a larger vocab_size"
        )


def _is_capturing(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()
