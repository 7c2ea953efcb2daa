"""Keys and values that queries attend to: between steps, in states and in the cache."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from staircase_attention.schedules import joined, overlap


class KeysValues(NamedTuple):
    """One layer's keys and values of some tokens, in order of time.

    Keys carry no positions: a stream has no end, so only distances between queries and keys are
    ever used as numbers.
    """

    keys: Float[Tensor, "batch heads time size"]
    values: Float[Tensor, "batch heads time size"]

    @property
    def num_tokens(self) -> int:
        """Number of tokens."""
        return self.keys.shape[2]

    def part(self, start: int, stop: int) -> "KeysValues":
        """Those of the tokens `start` to `stop` - 1, counted from the first one."""
        return KeysValues(self.keys[:, :, start:stop], self.values[:, :, start:stop])

    def parts(self, places: Sequence[range]) -> "KeysValues":
        """Those of several runs of tokens, as one."""
        return join([self.part(place.start, place.stop) for place in places or [range(0)]])

    def map(self, change: Callable[[Tensor], Tensor]) -> "KeysValues":
        """The same change made to both."""
        return KeysValues(change(self.keys), change(self.values))


def join(pieces: Sequence[KeysValues]) -> KeysValues:
    """Pieces that follow one another, as one."""
    if len(pieces) == 1:
        return pieces[0]
    return KeysValues(*(torch.cat(parts, dim=2) for parts in zip(*pieces, strict=True)))


def latest(pieces: Sequence[KeysValues], num_tokens: int) -> KeysValues:
    """The last tokens of pieces that follow one another."""
    taken: list[KeysValues] = []
    for piece in reversed(pieces):
        wanted = min(num_tokens, piece.num_tokens)
        if wanted:
            taken.insert(0, piece.part(piece.num_tokens - wanted, piece.num_tokens))
        num_tokens -= wanted
    return join(taken)


def split_heads(
    vectors: Float[Tensor, "batch time width"], num_heads: int
) -> Float[Tensor, "batch heads time size"]:
    """Split the width among the heads."""
    return torch.unflatten(vectors, -1, (num_heads, -1)).transpose(1, 2)


class Cache:
    """Keys and values of cached tokens: for each layer, or one pair for all.

    Tokens are added at the end, dropped anywhere, and read by their positions. With gradients, new
    tokens are joined with the old ones, and both are in a new place; the engine's cache overrides
    that. Without, they are written behind the old ones, into room that doubles when it is full: a
    step then copies what it adds, not all that is held. What was written is never overwritten.
    """

    def __init__(self, held: Sequence[KeysValues], positions: tuple[range, ...]) -> None:
        self._held = list(held)
        self._is_in_place = not torch.is_grad_enabled()
        self._rooms: list[KeysValues] = []
        """Memory of which the tokens up to `_stop` are in use; the last ones are those held."""
        self._stop = 0
        self.positions = positions
        """Positions of the tokens that are held."""

    def part(self, layer: int, positions: Sequence[range]) -> list[KeysValues]:
        """What a layer sees of these tokens, as far as they are held.

        What came before every row of a batch began is not.
        """
        places = self._places(overlap(positions, self.positions))
        return [self._part(layer, place.start, place.stop) for place in places]

    def add(self, new: Sequence[KeysValues], positions: range) -> None:
        """Hold these tokens too, which come after all that are held."""
        self._append(new)
        self.positions = joined((*self.positions, positions))

    def keep(self, positions: tuple[range, ...]) -> None:
        """Drop all other tokens."""
        kept = overlap(self.positions, positions)
        # Most steps drop nothing, and copying the cache would cost more than the step.
        if kept != self.positions:
            self._keep(self._places(kept))
            self.positions = kept

    def _places(self, positions: Iterable[range]) -> tuple[range, ...]:
        """Where these tokens lie among those held, as runs of neighbours."""
        # Tensors hold the tokens of all ranges side by side, without the gaps between them.
        return places_among(self.positions, tuple(positions))

    def held(self) -> list[KeysValues]:
        """All tokens that are held, for a state; gradients flow through it."""
        return self._held

    def _part(self, layer: int, start: int, stop: int) -> KeysValues:
        """Some tokens, counted from the first one held."""
        # With shared projections there is one pair, whatever the layer.
        return self._held[layer if len(self._held) > 1 else 0].part(start, stop)

    def _append(self, new: Sequence[KeysValues]) -> None:
        """Add tokens at the end."""
        if not (self._is_in_place and self._rooms):
            # The first time as much room as is needed: most calls add no more than one chunk.
            if self._held:
                new = [join(pair) for pair in zip(self._held, new, strict=True)]
            self._held = self._rooms = list(new)
            self._stop = new[0].num_tokens
            return
        num_held, num_new = self._held[0].num_tokens, new[0].num_tokens
        if self._stop + num_new > self._rooms[0].num_tokens:
            behind = (0, 0, 0, num_held + 2 * num_new)
            self._rooms = [held.map(lambda part: pad(part, behind)) for held in self._held]
            self._stop = num_held
        for room, pair in zip(self._rooms, new, strict=True):
            for place, tensor in zip(room, pair, strict=True):
                place[:, :, self._stop : self._stop + num_new].copy_(tensor)
        self._stop += num_new
        first = self._stop - num_held - num_new
        self._held = [room.part(first, self._stop) for room in self._rooms]

    def _keep(self, places: Sequence[range]) -> None:
        """Drop all tokens but these, counted from the first one held."""
        if len(places) != 1 or places[0].stop != self._held[0].num_tokens:
            self._rooms = []
        self._held = [held.parts(places) for held in self._held]


def places_among(stored: tuple[range, ...], positions: tuple[range, ...]) -> tuple[range, ...]:
    """Where positions lie in memory that holds the stored ones without gaps.

    >>> places_among((range(2, 4), range(7, 9)), (range(3, 9),))
    (range(1, 4),)
    """
    places, first = [], 0
    for held in stored:
        shift = first - held.start
        places += [
            range(part.start + shift, part.stop + shift) for part in overlap([held], positions)
        ]
        first += len(held)
    return joined(places)
