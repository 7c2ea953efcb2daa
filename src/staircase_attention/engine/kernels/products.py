"""Matrix products that are summed in float32, whatever the dtype of their factors."""

import torch
from jaxtyping import Float
from torch import Tensor


def add_product(
    total: Float[Tensor, "rows columns"],
    left: Float[Tensor, "rows inner"],
    right: Float[Tensor, "inner columns"],
) -> None:
    """Total += left @ right, in place; `total` is float32."""
    if left.dtype == total.dtype:
        total.addmm_(left, right)
    elif left.is_cuda:
        torch.addmm(total, left, right, out_dtype=total.dtype, out=total)
    else:
        total.addmm_(left.to(total.dtype), right.to(total.dtype))
