"""The Transformer core: layers that know of queries and context, and nothing of chunks."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
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

    def rows(self, number: int, num_rows: int) -> "Trip":
        """One of several batches that went together."""
        part = slice(number * num_rows, (number + 1) * num_rows)
        contexts = [
            [held.map(lambda tensor: tensor[part]) for held in context] for context in self.contexts
        ]
        return Trip([level[part] for level in self.levels], contexts)


# A gate begins with this share of what entered the recurrence: sigmoid(-2) = 0.12.
FIRST_GATE = -2.0


class Core(nn.Module):
    """Layers with one sense of distance, the same for every model of the family.

    Layers are numbered: first the L that recur, then those of the prelude, then the coda's.
    """

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
        self.config, self.attends_self = config, attends_self
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
        self.prelude, self.coda = (
            nn.ModuleList(Layer(config, owns_keys_values=True) for _ in range(number))
            for number in config.depth[1:]
        )
        self.injects = config.injection != "none"
        self.gate: nn.Linear | None = None
        if config.injection == "gated":
            self.gate = nn.Linear(config.width, config.width)
            nn.init.constant_(self.gate.bias, FIRST_GATE)

    def forward(
        self,
        hidden: Float[Tensor, "batch queries width"],
        *,
        layers: range,
        past: Sequence[Sequence[KeysValues]],
        view: View,
    ) -> Trip:
        """Take queries through some layers, each with its own past: pieces in order of time."""
        levels, contexts, every = [hidden], [], self.typed_layers
        for index, pieces in zip(layers, past, strict=True):
            hidden, context = every[index](
                hidden,
                pieces,
                view=view,
                positions=self.positions,
                memory=self.memory,
                attends_self=self.attends_self or index >= len(self.layers),
            )
            levels.append(hidden)
            contexts.append(context)
        return Trip(levels, contexts)

    def inject(
        self,
        hidden: Float[Tensor, "batch time width"],
        entered: Float[Tensor, "batch time width"],
    ) -> Float[Tensor, "batch time width"]:
        """What a pass after the first takes in, h being what the pass before it gave.

        h + e, or h + sigmoid(gate(h)) * (e - h), where e is what entered the recurrence.
        """
        if self.gate is None:
            return hidden + entered
        return hidden + torch.sigmoid(self.gate(hidden)) * (entered - hidden)

    def freeze(self, levels: Sequence[Float[Tensor, "batch time width"]]) -> list[KeysValues]:
        """The keys and values that tokens leave in the cache: for each layer, or one pair for all.

        `levels` are the tokens as they went in and after each layer, or only as they went in.
        """
        remembered = self.memory.remember(levels)
        if self.memory.shares_keys_values:
            return [self.memory.keys_values(self.memory.norm(remembered))]
        recurring = self.typed_layers[: len(self.layers)]
        return [layer.keys_values(remembered) for layer in recurring]

    def new_cache(
        self, held: Sequence[KeysValues], positions: tuple[range, ...], *, num_new: int
    ) -> Cache:
        """A cache of tokens from a state, to which at most `num_new` others will be added."""
        del num_new  # other runners allocate room for them
        return JoinedCache(held, positions)

    @property
    def typed_layers(self) -> list[Layer]:
        """All layers by number, with their type."""
        every = (*self.layers, *self.prelude, *self.coda)
        return [layer for layer in every if isinstance(layer, Layer)]
