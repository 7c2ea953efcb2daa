"""A modern block: RMSNorm, SwiGLU, rotary positions, and keys and values that heads share."""

from torch import Tensor, nn
from torch.nn import functional

from staircase_attention.attention import View
from staircase_attention.layers import Block, KeysValues
from staircase_attention.layers.positions import RotaryPositions


class Modern(Block):
    """h + Attention(norm(h)), then + SwiGLU(norm(·))."""

    def __init__(
        self, *, width: int, num_heads: int, num_key_value_heads: int, feed_forward_width: int
    ) -> None:
        super().__init__()
        self.width = width
        self.num_heads, self.num_key_value_heads = num_heads, num_key_value_heads
        size = width // num_heads
        self.positions = RotaryPositions(head_size=size)
        self.attention_norm = nn.RMSNorm(width, eps=1e-5)
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, num_key_value_heads * size, bias=False)
        self.value = nn.Linear(width, num_key_value_heads * size, bias=False)
        self.output = nn.Linear(width, width, bias=False)
        self.feed_forward_norm = nn.RMSNorm(width, eps=1e-5)
        self.gate = nn.Linear(width, feed_forward_width, bias=False)
        self.expand = nn.Linear(width, feed_forward_width, bias=False)
        self.contract = nn.Linear(feed_forward_width, width, bias=False)

    def keys_values(self, hidden: Tensor) -> KeysValues:
        """What tokens are remembered by: batch x heads x time x size, without positions."""
        normed = self.attention_norm(hidden)
        heads = (self.num_key_value_heads, -1)
        pair = (made.unflatten(-1, heads) for made in (self.key(normed), self.value(normed)))
        return KeysValues(*(made.transpose(1, 2) for made in pair))

    def transform(self, hidden: Tensor, context: KeysValues | None, *, view: View) -> Tensor:
        """Queries attend to the context, where there is one."""
        if context is not None:
            queries = self.query(self.attention_norm(hidden)).unflatten(-1, (self.num_heads, -1))
            queries, keys = self.positions.place(queries.transpose(1, 2), context.keys, view)
            found = functional.scaled_dot_product_attention(
                queries,
                keys,
                context.values,
                attn_mask=None if view.hidden is None else ~view.hidden,
                enable_gqa=True,
            )
            hidden = hidden + self.output(found.transpose(1, 2).flatten(-2))
        normed = self.feed_forward_norm(hidden)
        inner = functional.silu(self.gate(normed)) * self.expand(normed)
        return hidden + self.contract(inner)
