"""What queries may see: the one place where distances and visibility are computed."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from staircase_attention.schedules import joined, num_positions


@dataclass(frozen=True, kw_only=True)
class View:
    """Where some queries stand among their keys, and how far back they see.

    Places are counted from the oldest key. Query i stands at place `first_query` + i, whether or
    not a key is there, and sees the keys at distances 0 to `span` - 1, except those before the
    first one that belongs to its batch row's stream.
    """

    num_queries: int
    num_keys: int
    first_query: int
    """The place of the first query."""
    places: tuple[range, ...] | None = None
    """The places of the keys, where there are gaps between them; None: key j is at place j."""
    span: int | None = None
    """S: number of distances that a query sees, 0 included; None: all the way back."""
    first_visible: Int[Tensor, " batch"] | None = None
    """For each batch row, the index of the earliest key of its stream; None: all belong to it."""
    device: torch.device

    @classmethod
    def of(
        cls,
        *,
        queries: range,
        keys: Iterable[range],
        span: int | None,
        starts: Sequence[int] = (0,),
        device: torch.device,
    ) -> "View":
        """The view of queries and keys at these positions, for rows whose streams begin there."""
        parts = joined(keys)
        oldest = parts[0].start if parts else queries.start
        first_visible = None
        # A row that began after the oldest key counts the keys that are not its own.
        if max(starts) > oldest:
            earlier = [
                sum(max(0, min(part.stop, start) - part.start) for part in parts)
                for start in starts
            ]
            first_visible = torch.tensor(earlier, device=device)
        return cls(
            num_queries=len(queries),
            num_keys=num_positions(parts),
            first_query=queries.start - oldest,
            places=tuple(range(part.start - oldest, part.stop - oldest) for part in parts)
            if len(parts) > 1
            else None,
            span=span,
            first_visible=first_visible,
            device=device,
        )

    @property
    def num_distances(self) -> int:
        """Distances that occur between a query and a key not after it: 0 to this minus 1."""
        return self.first_query + self.num_queries

    @property
    def has_gaps(self) -> bool:
        """Whether the keys are not all neighbours in time."""
        return self.places is not None

    @cached_property
    def key_places(self) -> Int[Tensor, " keys"]:
        """The place of each key."""
        places = (range(self.num_keys),) if self.places is None else self.places
        parts = [torch.arange(part.start, part.stop, device=self.device) for part in places]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    @cached_property
    def distances(self) -> Int[Tensor, "queries keys"]:
        """How far each key lies behind each query; negative for keys after it."""
        queries = torch.arange(self.num_queries, device=self.device)
        return self.first_query + queries[:, None] - self.key_places[None, :]

    @cached_property
    def hidden(self) -> Bool[Tensor, "#batch 1 queries keys"] | None:
        """The keys that a query must not see; None where it sees all."""
        last = self.num_keys - 1 if self.places is None else self.places[-1].stop - 1
        # Of use only where some distance is beyond it.
        span = self.span if self.span and self.num_distances > self.span else None
        if self.first_query >= last and span is None and self.first_visible is None:
            return None
        hidden = self.distances < 0
        if span is not None:
            hidden = hidden | (self.distances >= span)
        hidden = hidden[None, None]  # [1, 1, queries, keys]: the same for all rows and heads
        if self.first_visible is not None:
            keys = torch.arange(self.num_keys, device=self.device)
            hidden = hidden | (keys < self.first_visible[:, None])[:, None, None, :]
        return hidden
