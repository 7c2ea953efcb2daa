"""How a core knows distances: by a learned table, or by rotated queries and keys."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from staircase_attention.attention import View

# Bound on the wavelengths of the rotary angles, over 2π (Su et al. 2021).
ROTARY_BASE = 10_000.0


class RelativePositions(nn.Module):
    """One learned vector per distance, shared by all layers and heads (Shaw et al. 2018).

    Attention adds q · r[distance] to its scores.
    """

    def __init__(self, *, max_distance: int, head_size: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.empty(max_distance, head_size))
        nn.init.normal_(self.table, std=head_size**-0.5)


class RotaryPositions(nn.Module):
    """Queries and keys turned by an angle that grows with their place (Su et al. 2021).

    Only differences of places matter, so places are counted from the oldest key: the
    angles stay small however long the stream.
    """

    table = None

    def __init__(self, *, head_size: int) -> None:
        super().__init__()
        self.head_size = head_size

    def place(
        self,
        queries: Float[Tensor, "batch heads queries size"],
        keys: Float[Tensor, "batch groups keys size"],
        view: View,
    ) -> tuple[Tensor, Tensor]:
        """Queries and keys, rotated."""
        turns = self.turns(view).to(queries.dtype)
        first = view.first_query
        places = view.key_places if view.has_gaps else slice(view.num_keys)
        return (
            rotate(queries, turns[:, first : first + view.num_queries]),
            rotate(keys, turns[:, places]),
        )

    def turns(self, view: View) -> Float[Tensor, "2 places half"]:
        """Cosine and sine of every place's angles."""
        # In float64 until the angle is gone: fewer bits lose it far along a window.
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
