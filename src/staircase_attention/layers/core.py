"""The Transformer core: layers that know of queries and context, and nothing of chunks."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

import torch
from jaxtyping import Float
from torch import Tensor, nn

from staircase_attention.attention import View
from staircase_attention.layers.block import Block, Remembering
from staircase_attention.layers.config import CoreConfig
from staircase_attention.layers.keys_values import Cache, KeysValues
from staircase_attention.layers.layer import Layer, Memory, make_norm
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
        blocks: nn.ModuleList | None = None,
    ) -> None:
        super().__init__()
        self.config, self.attends_self = config, attends_self
        # The order in which parts are made is the order of parameters and of random numbers:
        # changing it changes every seeded run.
        self.positions: RelativePositions | RotaryPositions | None = None
        if not blocks and config.positions == "relative":
            self.positions = RelativePositions(
                max_distance=max_distance, head_size=config.head_size
            )
        elif not blocks:
            self.positions = RotaryPositions(head_size=config.head_size)
        new = (
            Layer(config, owns_keys_values=number >= config.num_layers or not shares_keys_values)
            for number in range(sum(config.depth))
        )
        given = iter(blocks or new)
        self.layers = nn.ModuleList(islice(given, config.num_layers))
        # Blocks of a user have no projections for all of them: those of the first one serve.
        self.shares_first = shares_keys_values and bool(blocks)
        shares = shares_keys_values and not blocks
        self.memory = Memory(config, mixes_layers=mixes_layers, shares_keys_values=shares)
        self.prelude, self.coda = (
            nn.ModuleList(islice(given, number)) for number in config.depth[1:]
        )
        self.injects = config.injection != "none"
        self.gate: nn.Linear | None = None
        self.state_norm: nn.LayerNorm | nn.RMSNorm | None = None
        if config.injection == "normed":
            self.state_norm = make_norm(config, config.width)
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
        levels, contexts, every = [hidden], [], self.blocks
        for index, pieces in zip(layers, past, strict=True):
            recurs = index < len(self.layers)
            hidden, context = every[index](
                hidden,
                pieces,
                view=view,
                attends_self=self.attends_self or not recurs,
                shared=self.shared if recurs else None,
                positions=self.positions,
            )
            levels.append(hidden)
            contexts.append(context)
        return Trip(levels, contexts)

    def inject(
        self, hidden: Float[Tensor, "batch time width"], entered: Float[Tensor, "batch time width"]
    ) -> Float[Tensor, "batch time width"]:
        """What a pass after the first takes in, h being what the pass before it gave.

        h + e, norm(h) + e, or h + sigmoid(gate(h)) * (e - h), e being what entered the recurrence.
        """
        if self.gate is not None:
            return hidden + torch.sigmoid(self.gate(hidden)) * (entered - hidden)
        return (hidden if self.state_norm is None else self.state_norm(hidden)) + entered

    def settle(self, before: Tensor, computed: Tensor) -> Tensor:
        """What a pass after the first leaves, from what it found and what it computed."""
        del before
        return computed

    def freeze(self, levels: Sequence[Float[Tensor, "batch time width"]]) -> list[KeysValues]:
        """The keys and values that tokens leave in the cache: for each layer, or one pair for all.

        `levels` are the tokens as they went in and after each layer, or only as they went in.
        """
        remembered = self.memory.remember(levels)
        each = [block.keys_values for block in self.blocks[: len(self.layers)]]
        return [make(remembered) for make in ([self.shared] if self.shared else each)]

    def new_cache(
        self, held: Sequence[KeysValues], positions: tuple[range, ...], *, num_new: int
    ) -> Cache:
        """A cache of tokens from a state, to which at most `num_new` others will be added."""
        del num_new  # other runners allocate room for them
        return Cache(held, positions)

    @property
    def shared(self) -> Remembering | None:
        """What makes keys and values for all layers that recur; None: each layer for itself."""
        if self.shares_first:
            return self.blocks[0].keys_values
        return self.memory.keys_values if self.memory.shares_keys_values else None

    @property
    def blocks(self) -> list[Block]:
        """All layers by number."""
        return [*self.layers, *self.prelude, *self.coda]

    @property
    def typed_layers(self) -> list[Layer]:
        """All layers by number, where they are the family's own."""
        return [layer for layer in self.blocks if isinstance(layer, Layer)]
