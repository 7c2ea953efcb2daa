"""What runs the core: the protocol that a fast engine implements, and the plain one.

A model asks its backend for a runner at every forward pass. `PlainBackend` gives the core itself;
`staircase_attention.engine.accelerate` installs a backend that computes the same function faster.
"""

from collections.abc import Sequence
from typing import Any, Protocol

from jaxtyping import Float
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from staircase_attention.attention import View
from staircase_attention.layers import Cache, Core, KeysValues, Trip


class CoreRunner(Protocol):
    """What the executor needs of a core, for one stream and one forward pass."""

    def __call__(
        self,
        hidden: Float[Tensor, "batch queries width"],
        /,
        *,
        layers: range,
        past: Sequence[Sequence[KeysValues]],
        view: View,
    ) -> Trip:
        """Take queries through some layers, each with its own past: pieces in order of time."""

    def freeze(self, levels: Sequence[Float[Tensor, "batch time width"]]) -> list[KeysValues]:
        """The keys and values that tokens leave in the cache: for each layer, or one pair."""

    def new_cache(
        self, held: Sequence[KeysValues], positions: tuple[range, ...], *, num_new: int
    ) -> Cache:
        """A cache of tokens from a state, to which at most `num_new` others will be added."""


class Backend(Protocol):
    """How a model computes its core."""

    def runner(
        self, core: Core, embedded: Float[Tensor, "rows time width"], *, recompute: bool
    ) -> CoreRunner:
        """What takes these tokens through the core.

        With `recompute`, activations are computed again in the backward pass instead of kept.
        """


class PlainBackend:
    """PyTorch's own operations, as the modules of the core have them."""

    def runner(
        self, core: Core, embedded: Float[Tensor, "rows time width"], *, recompute: bool
    ) -> CoreRunner:
        """The core itself."""
        del embedded
        return RecomputedCore(core) if recompute else core


class RecomputedCore:
    """A core whose activations are computed again in the backward pass."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self.freeze = core.freeze
        self.new_cache = core.new_cache

    def __call__(self, hidden: Float[Tensor, "batch queries width"], **inputs: Any) -> Trip:  # noqa: ANN401
        """As the core."""
        # The reentrant variant follows gradients of positional tensors only, not of the past.
        trip: Trip = checkpoint(self.core, hidden, use_reentrant=False, **inputs)
        return trip
