"""How a core knows distances: both ways offer `attend`, and keep their numbers to themselves."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from staircase_attention.attention import View, attend
from staircase_attention.layers.keys_values import KeysValues

ROTARY_BASE = 10_000.0
"""Bound on the wavelengths of the rotary angles, over 2π: Su et al. 2021's."""


class RelativePositions(nn.Module):
    """One learned vector a distance, shared by all layers and heads (Shaw et al. 2018)."""

    def __init__(self, *, max_distance: int, head_size: int) -> None:
        super().__init__()
        self.fuses = True
        """Whether attention may be done by kernels of our own, on a GPU."""
        self.table = nn.Parameter(torch.empty(max_distance, head_size))
        nn.init.normal_(self.table, std=head_size**-0.5)

    def attend(
        self,
        queries: Float[Tensor, "batch heads queries size"],
        context: KeysValues,
        *,
        view: View,
        dropout: float,
    ) -> Float[Tensor, "batch heads queries size"]:
        """Attention whose scores gain q · r[distance]."""
        keys, values = context
        return attend(
            queries,
            keys,
            values,
            table=self.table,
            view=view,
            dropout=dropout,
            fuses=self.fuses,
        )


class RotaryPositions(nn.Module):
    """Queries and keys turned by an angle that grows with their place (Su et al. 2021).

    Only differences of places matter, so places are counted from the oldest key in sight: the
    angles stay small however long the stream.
    """

    def __init__(self, *, head_size: int) -> None:
        super().__init__()
        self.head_size = head_size

    def attend(
        self,
        queries: Float[Tensor, "batch heads queries size"],
        context: KeysValues,
        *,
        view: View,
        dropout: float,
    ) -> Float[Tensor, "batch heads queries size"]:
        """Attention between rotated queries and rotated keys."""
        keys, values = context
        turns = self._turns(view).to(queries.dtype)
        first = view.first_query
        queries = rotate(queries, turns[:, first : first + view.num_queries])
        places = view.key_places if view.has_gaps else slice(view.num_keys)
        keys = rotate(keys, turns[:, places])
        return attend(queries, keys, values, table=None, view=view, dropout=dropout)

    def _turns(self, view: View) -> Float[Tensor, "2 places half"]:
        """Cosine and sine of every place's angles."""
        # In float64 until the angle is gone: a place far along a window loses it in less.
        pairs = torch.arange(self.head_size // 2, dtype=torch.float64, device=view.device)
        num_places = max(view.num_keys, view.num_distances)
        places = torch.arange(num_places, dtype=torch.float64, device=view.device)
        angles = places[:, None] * torch.pow(ROTARY_BASE, -2 * pairs / self.head_size)
        return torch.stack([angles.cos(), angles.sin()])


def rotate(
    vectors: Float[Tensor, "batch heads time size"], turns: Float[Tensor, "2 time half"]
) -> Float[Tensor, "batch heads time size"]:
    """Turn each pair (element j, element j + half) by the angle with this cosine and sine."""
    first, second = vectors.chunk(2, dim=-1)
    cosine, sine = turns
    return torch.cat([first * cosine - second * sine, first * sine + second * cosine], dim=-1)
