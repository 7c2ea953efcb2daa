"""Rotary positions: queries and keys turned by the angles of their places, and gradients back."""

# mypy: disable-error-code="untyped-decorator"

import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

from staircase_attention.engine.kernels.relative_parts import Heads, heads

# Vectors that a program turns.
ROTATED = tl.constexpr(64)


# Equation: (a, b) -> (a c - b s, a s + b c) for elements j and j + half of the vector at place p,
# with c and s = cosine and sine[p, j]; or back, by -s.
# Tiles: ROTATED vectors of one matrix per program, in halves. Writes `out`, or adds to it.
# Precision: float32, rounded to the dtype of `out`.
@triton.jit(do_not_specialize=["first", "num_places", "time", "num_heads"])
def rotate_kernel(
    source: Heads,
    out: Heads,
    turns: tl.tensor,
    first: tl.tensor,
    num_places: tl.tensor,
    time: tl.tensor,
    num_heads: tl.tensor,
    backwards: tl.constexpr,
    adds: tl.constexpr,
    half: tl.constexpr,
) -> None:
    row, head = tl.program_id(1) // num_heads, tl.program_id(1) % num_heads
    times = tl.program_id(0) * ROTATED + tl.arange(0, ROTATED)
    unit = tl.arange(0, half)[None, :]
    inside = (times < time)[:, None]
    angle = turns + (first + times)[:, None] * half + unit
    cosine = tl.load(angle, mask=inside, other=0.0)
    sine = tl.load(angle + num_places * half, mask=inside, other=0.0)
    if backwards:
        sine = -sine
    base = tl.cast(row, tl.int64) * source.batch + tl.cast(head, tl.int64) * source.head
    place = source.data + base + times.to(tl.int64)[:, None] * source.row + unit
    one = tl.load(place, mask=inside, other=0.0).to(tl.float32)
    two = tl.load(place + half, mask=inside, other=0.0).to(tl.float32)
    base = tl.cast(row, tl.int64) * out.batch + tl.cast(head, tl.int64) * out.head
    place = out.data + base + times.to(tl.int64)[:, None] * out.row + unit
    turned, other = one * cosine - two * sine, one * sine + two * cosine
    if adds:
        turned += tl.load(place, mask=inside, other=0.0).to(tl.float32)
        other += tl.load(place + half, mask=inside, other=0.0).to(tl.float32)
    tl.store(place, turned.to(out.data.dtype.element_ty), mask=inside)
    tl.store(place + half, other.to(out.data.dtype.element_ty), mask=inside)


def rotate(
    source: Float[Tensor, "batch heads time size"],
    turns: Float[Tensor, "2 places half"],
    *,
    first: int,
    out: Float[Tensor, "batch heads time size"],
    backwards: bool = False,
    adds: bool = False,
) -> Float[Tensor, "batch heads time size"]:
    """Vectors turned by the angles of their places, from `first` on; written or added to `out`."""
    batch, num_heads, time, size = source.shape
    rotate_kernel[(triton.cdiv(time, ROTATED.value), batch * num_heads)](
        *(heads(source), heads(out), turns, first, turns.shape[1], time, num_heads),
        backwards=backwards,
        adds=adds,
        half=size // 2,
        num_warps=4,
    )
    return out
