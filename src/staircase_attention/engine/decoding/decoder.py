"""A stream that takes one token of every row at a time, as fast as the device allows."""

import importlib.util
import os
import warnings
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from staircase_attention.engine.decoding.layout import Layout
from staircase_attention.engine.decoding.memory import Memory, holds_what_it_should
from staircase_attention.engine.decoding.weights import Weights
from staircase_attention.engine.fused import KINDS
from staircase_attention.engine.kernels.graphs import captured
from staircase_attention.layers.embedding import Embedding
from staircase_attention.layers.plainness import are_untouched
from staircase_attention.layers.positions import RotaryPositions
from staircase_attention.models.sequence_model import SequenceModel
from staircase_attention.models.state import State

if TYPE_CHECKING:
    from staircase_attention.engine.decoding.launches import Launches

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
KNOWN = (*KINDS, RotaryPositions, SequenceModel, Embedding, nn.Embedding)
"""What a model is made of."""
HOPPER = 9
"""The first kind of GPU on which a kernel can begin before the one ahead of it has ended."""


class Decoder:
    """A model and a state of it, made ready for single tokens.

    It computes what the model itself would, in the same numbers up to rounding, with hidden vectors
    in float32. Weights are read when it is made, and its state is its own: `state()` gives an
    ordinary one back at any moment. On a GPU a token is one captured graph.
    """

    def __init__(
        self,
        model: SequenceModel,
        state: State,
        *,
        weights: Weights | None = None,
        capture: bool = True,
        early: bool | None = None,
    ) -> None:
        if not self.fits(model, state):
            raise ValueError(
                "a decoder takes a bounded model of the family in bfloat16, float16 or float32 on "
                "a GPU, and a state of it that is one stream; use the model itself where "
                "Decoder.fits says no"
            )
        layout = Layout.of(model.schedule, model.config.num_layers)
        assert layout is not None
        dtype = compute_dtype(model)
        device = model.output.weight.device
        self._given = replace(state, streams=())
        # On a CPU, where there is no device to choose, this does nothing.
        self._device = torch.cuda.device(device.index if device.type == "cuda" else -1)
        self._num_steps = 0
        # What is made in inference mode could not be part of anything that is differentiated.
        with torch.inference_mode(mode=False), torch.no_grad():
            if weights is None or not weights.serve(model, dtype):
                weights = Weights.of(model, dtype)
            self.weights = weights
            self._memory = Memory(
                layout,
                state.streams[0],
                num_layers=model.config.num_layers,
                num_caches=1 if weights.shared is not None else model.config.num_layers,
                num_heads=model.config.num_heads,
                head_size=model.config.head_size,
                dtype=dtype,
                device=device,
            )
            self._launches = self._prepare(layout, model.config.num_heads, early=early)
            self._graph = self._captured() if capture and device.type == "cuda" else None

    @staticmethod
    def fits(model: object, state: object) -> bool:
        """Whether a decoder can go on from this state as the model would."""
        if not isinstance(model, SequenceModel) or not isinstance(state, State):
            return False
        if not are_untouched(model, KNOWN) or model.config.head_size % 2:
            return False
        here = model.output.weight
        dtype = compute_dtype(model)
        is_casting = torch.is_autocast_enabled(here.device.type)
        layout = Layout.of(model.schedule, model.config.num_layers)
        return (
            can_run_on(here.device)
            and layout is not None
            and dtype in DTYPES
            and state.model == model.signature
            and len(state.streams) == 1
            and state.streams[0].rows == tuple(range(state.batch_size))
            and (is_casting or not state.dtypes - {dtype})
            and not state.devices - {here.device}
            and holds_what_it_should(layout, state, model.config.num_layers)
        )

    @property
    def batch_size(self) -> int:
        """Rows in the batch."""
        return self._memory.num_rows

    @property
    def is_captured(self) -> bool:
        """Whether a token is one graph."""
        return self._graph is not None

    @property
    def num_kernels(self) -> int:
        """Kernels a token."""
        return len(self._launches)

    def step(self, tokens: Int[Tensor, " batch"]) -> Float[Tensor, "batch output"]:
        """Logits after one more token of every row, in float32; the next step overwrites them."""
        if tokens.shape != (self.batch_size,):
            raise ValueError(
                f"a step takes one token for each of the {self.batch_size} rows, "
                f"got shape {tuple(tokens.shape)}; pass tokens of shape ({self.batch_size},)"
            )
        with torch.no_grad(), self._device:
            self._launches.tokens.copy_(tokens)
            if self._graph is None:
                self._launches.run()
            else:
                self._graph.replay()
        self._num_steps += 1
        return self._launches.logits

    def undo(self) -> None:
        """Take back the latest step, once: what it wrote lies where nobody looks any more."""
        assert self._num_steps > 0
        self._num_steps -= 1
        with torch.no_grad():
            self._memory.position.sub_(1)

    def state(self) -> State:
        """Where the stream stands, as the model itself would say it: a copy."""
        position = self._memory.begun.position + self._num_steps
        with torch.inference_mode(mode=False), torch.no_grad():
            return replace(self._given, streams=(self._memory.stream(position),))

    def _prepare(self, layout: Layout, num_heads: int, *, early: bool | None) -> "Launches":
        # Triton is imported where it is used: it may not be there.
        from staircase_attention.engine.decoding.launches import Launches

        device = self.weights.logits.device
        if early is None:
            early = device.type == "cuda" and torch.cuda.get_device_capability(device)[0] >= HOPPER
        return Launches(self.weights, layout, self._memory, num_heads=num_heads, early=early)

    def _captured(self) -> torch.cuda.CUDAGraph | None:
        """The launches as one graph; None where they cannot be captured."""
        try:
            with self._device:
                return self._capture()
        except RuntimeError as error:
            warnings.warn(f"tokens are decoded without a captured graph: {error}", stacklevel=4)
            return None

    def _capture(self) -> torch.cuda.CUDAGraph:
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            # Compiles all kernels. What it leaves in the rings is where the next token will be.
            self._launches.run()
            self._memory.position.sub_(1)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with captured(graph):
            self._launches.run()
        return graph


def compute_dtype(model: SequenceModel) -> torch.dtype:
    """The numbers that products are made of: autocast's, or those of the weights."""
    weight = model.output.weight
    if torch.is_autocast_enabled(weight.device.type):
        return torch.get_autocast_dtype(weight.device.type)
    return weight.dtype


def can_run_on(device: torch.device) -> bool:
    """Whether the kernels can run there; on a CPU only Triton's interpreter runs them."""
    if importlib.util.find_spec("triton") is None:
        return False
    return device.type == "cuda" or os.environ.get("TRITON_INTERPRET") == "1"
