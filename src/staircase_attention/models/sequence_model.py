"""The model a user builds: tokens in, logits and state out, whatever the schedule."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from staircase_attention.engine.fused import fused_core
from staircase_attention.layers import Core, CoreConfig
from staircase_attention.layers.embedding import Embedding
from staircase_attention.layers.positions import RelativePositions
from staircase_attention.models.checks import check_order, check_parts, check_sizes, check_tokens
from staircase_attention.models.executor import Executor
from staircase_attention.models.state import State, Stream
from staircase_attention.models.uncompiled import left_uncompiled
from staircase_attention.schedules import Order, Schedule

if TYPE_CHECKING:
    from staircase_attention.generation import TokenStream
    from staircase_attention.generation.prompts import Prompt


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
        self.embedding: nn.Embedding = Embedding(vocab_size, core.width)
        self.core = Core(
            core,
            max_distance=core.max_distance or schedule.default_max_distance,
            attends_self=schedule.attends_self,
            mixes_layers=schedule.mixes_layers,
            shares_keys_values=schedule.shares_keys_values,
        )
        self.output_norm = nn.LayerNorm(core.width)
        self.output = nn.Linear(core.width, output_size)
        self._fuse = True
        self.recompute = False
        """Whether to compute activations again in the backward pass: less memory, more time."""

    def forward(
        self,
        tokens: Int[Tensor, "batch time"],
        state: State | None = None,
        *,
        order: Order = "window",
    ) -> tuple[Float[Tensor, "batch time output"], State]:
        """Logits for every token, and the state from which the stream goes on.

        Both orders compute the same function: `window` takes as many tokens a step as the schedule
        allows, `chunk` one chunk at a time, which needs less memory where no gradients are kept.
        """
        hidden, state = self.hidden(tokens, state, order=order)
        return self.output(hidden), state

    # What is computed when is Python's business, and new at every position. A model compiled
    # as a whole runs it as it is; on a GPU the fused core has compiled what is worth it.
    @left_uncompiled
    def hidden(
        self,
        tokens: Int[Tensor, "batch time"],
        state: State | None = None,
        *,
        order: Order = "window",
    ) -> tuple[Float[Tensor, "batch time width"], State]:
        """What the output projection turns into logits, for those who project it themselves."""
        check_tokens(tokens, self.vocab_size)
        check_order(order)
        if state is None:
            state = self.initial_state(tokens.shape[0])
        self._check_state(state, tokens)
        hidden, streams = self._run_streams(tokens, state, order)
        after = State(model=state.model, chunk_length=state.chunk_length, streams=streams)
        return self.output_norm(hidden), after

    def stream(
        self,
        prompt: "Prompt | Sequence[Prompt]",
        *,
        max_tokens: int | None,
        **options: Any,  # noqa: ANN401
    ) -> "TokenStream":
        """The tokens by which the model continues a prompt, made as they are asked for.

        See `staircase_attention.generation.stream` for prompts, sampling and stops.
        """
        # The one import that points upwards: a model is where a user looks for this.
        from staircase_attention.generation import stream

        return stream(self, prompt, max_tokens=max_tokens, **options)

    @property
    def fuse(self) -> bool:
        """Whether kernels of our own are used where they serve: on a GPU, with relative positions.

        They are by default. Without them, a model is made of PyTorch's operations alone.
        """
        return self._fuse

    @fuse.setter
    def fuse(self, fuse: bool) -> None:
        self._fuse = fuse
        if isinstance(self.core.positions, RelativePositions):
            self.core.positions.fuses = fuse

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
        recompute = self.recompute and torch.is_grad_enabled()
        fused = fused_core(self.core, embedded, recompute=recompute) if self.fuse else None
        executor = Executor(
            fused or self.core,
            self.schedule,
            stream,
            embedded,
            recompute=recompute and fused is None,
        )
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
        is_casting = torch.is_autocast_enabled(here.device.type)
        if not is_casting and state.dtypes - {here.dtype}:
            found = ", ".join(sorted(str(dtype) for dtype in state.dtypes))
            raise ValueError(
                f"state and model must be of one dtype, got {found} and {here.dtype}; "
                f"use state.to(dtype={here.dtype})"
            )
        if state.devices - {here.device}:
            found = ", ".join(sorted(str(device) for device in state.devices))
            raise ValueError(
                f"state and model must be on one device, got {found} and {here.device}; "
                f"use state.to('{here.device}')"
            )


def describe(signature: Any) -> str:  # noqa: ANN401
    """A model's shape in one line."""
    facts = dict(signature)
    options = dict(facts.pop("schedule", {}))
    name = options.pop("name", "an unknown model")
    inner = ", ".join(f"{key}={value}" for key, value in (options | facts).items())
    return f"{name} ({inner})"
