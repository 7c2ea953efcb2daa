"""The Transformer core: layers that know of queries and context, and nothing of chunks."""

from collections.abc import Sequence
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor, nn

from staircase_attention.attention import View
from staircase_attention.layers.config import CoreConfig
from staircase_attention.layers.keys_values import Cache, JoinedCache, KeysValues
from staircase_attention.layers.layer import Layer, Memory
from staircase_attention.layers.positions import RelativePositions, RotaryPositions


@dataclass(frozen=True, slots=True)
class Trip:
    """What comes out of the core for some queries."""

    levels: list[Float[Tensor, "batch queries width"]]
    """The queries as they went in, and after each layer they went through."""
    contexts: list[list[KeysValues]]
    """For each of these layers, all keys and values that the queries saw, in order of time."""

    @property
    def hidden(self) -> Float[Tensor, "batch queries width"]:
        """The queries as they come out."""
        return self.levels[-1]


class Core(nn.Module):
    """L layers with one sense of distance, the same for every model of the family."""

    def __init__(
        self,
        config: CoreConfig,
        *,
        max_distance: int,
        attends_self: bool = True,
        mixes_layers: bool = False,
        shares_keys_values: bool = False,
    ) -> None:
        super().__init__()
        self.attends_self = attends_self
        # The order in which parts are made is the order of parameters and of random numbers:
        # changing it changes every seeded run.
        self.positions: RelativePositions | RotaryPositions
        if config.positions == "relative":
            self.positions = RelativePositions(
                max_distance=max_distance, head_size=config.head_size
            )
        else:
            self.positions = RotaryPositions(head_size=config.head_size)
        self.layers = nn.ModuleList(
            Layer(config, owns_keys_values=not shares_keys_values) for _ in range(config.num_layers)
        )
        self.memory = Memory(
            config, mixes_layers=mixes_layers, shares_keys_values=shares_keys_values
        )

    def forward(
        self,
        hidden: Float[Tensor, "batch queries width"],
        *,
        layers: range,
        past: Sequence[Sequence[KeysValues]],
        view: View,
    ) -> Trip:
        """Take queries through some layers, each with its own past: pieces in order of time."""
        levels, contexts = [hidden], []
        for index, pieces in zip(layers, past, strict=True):
            hidden, context = self.layers[index](
                hidden,
                pieces,
                view=view,
                positions=self.positions,
                memory=self.memory,
                attends_self=self.attends_self,
            )
            levels.append(hidden)
            contexts.append(context)
        return Trip(levels, contexts)

    def freeze(self, levels: Sequence[Float[Tensor, "batch time width"]]) -> list[KeysValues]:
        """The keys and values that tokens leave in the cache: for each layer, or one pair for all.

        `levels` are the tokens as they went in and after each layer, or only as they went in.
        """
        remembered = self.memory.remember(levels)
        if self.memory.shares_keys_values:
            return [self.memory.keys_values(remembered)]
        return [layer.keys_values(remembered) for layer in self.typed_layers]

    def new_cache(
        self, held: Sequence[KeysValues], positions: tuple[range, ...], *, num_new: int
    ) -> Cache:
        """A cache of tokens from a state, to which at most `num_new` others will be added."""
        del num_new  # other runners allocate room for them
        return JoinedCache(held, positions)

    @property
    def typed_layers(self) -> list[Layer]:
        """The layers, with their type."""
        return [layer for layer in self.layers if isinstance(layer, Layer)]
