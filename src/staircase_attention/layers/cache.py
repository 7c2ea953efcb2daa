"""What cached tokens left behind, while a stream runs on."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from staircase_attention.layers.keys_values import KeysValues, join


class Cache(ABC):
    """Keys and values of cached tokens: for each layer, or one pair for all.

    Tokens join at the end and leave at the beginning, and are asked for by their positions.
    """

    def __init__(self, tokens: range) -> None:
        self.tokens = tokens
        """Positions of the tokens that are held."""

    def part(self, layer: int, tokens: range) -> list[KeysValues]:
        """What a layer sees of these tokens, as far as they are there; nothing if none is.

        What came before every row of a batch began is not.
        """
        first = self.tokens.start
        start = max(tokens.start, first)
        if start >= tokens.stop:
            return []
        return [self._part(layer, start - first, tokens.stop - first)]

    def remember(self, new: Sequence[KeysValues], stop: int) -> None:
        """Hold the tokens up to `stop` - 1, which come next."""
        self._append(new)
        self.tokens = range(self.tokens.start, stop)

    def forget_before(self, position: int) -> None:
        """Drop what nobody will look at any more."""
        if position > self.tokens.start:
            self._drop(min(position, self.tokens.stop) - self.tokens.start)
            self.tokens = range(position, max(position, self.tokens.stop))

    @abstractmethod
    def held(self) -> list[KeysValues]:
        """All that is held, as a state carries it on; gradients flow through it."""

    @abstractmethod
    def _part(self, layer: int, start: int, stop: int) -> KeysValues:
        """Some tokens, counted from the first one held."""

    @abstractmethod
    def _append(self, new: Sequence[KeysValues]) -> None:
        """Let tokens join."""

    @abstractmethod
    def _drop(self, num_tokens: int) -> None:
        """Let the oldest ones leave."""


class JoinedCache(Cache):
    """New tokens are joined with the old ones, and both are in a new place."""

    def __init__(self, held: Sequence[KeysValues], tokens: range) -> None:
        super().__init__(tokens)
        self._held = list(held)

    def held(self) -> list[KeysValues]:
        """As it is."""
        return self._held

    def _part(self, layer: int, start: int, stop: int) -> KeysValues:
        return self._held[layer if len(self._held) > 1 else 0].part(start, stop)

    def _append(self, new: Sequence[KeysValues]) -> None:
        if self._held:
            self._held = [join(pair) for pair in zip(self._held, new, strict=True)]
        else:
            self._held = list(new)

    def _drop(self, num_tokens: int) -> None:
        self._held = [held.part(num_tokens, held.num_tokens) for held in self._held]
