"""The kernels by which one token of every row goes through a model, in order."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import triton
from torch import Tensor

from staircase_attention.engine.decoding.layout import Layout
from staircase_attention.engine.decoding.memory import Memory
from staircase_attention.engine.decoding.tiles import attention_tiles, few_tiles, many_tiles
from staircase_attention.engine.decoding.weights import Norm, Weights
from staircase_attention.engine.kernels import decoding as kernels
from staircase_attention.engine.kernels.decoding_attention import attend_rings

MOST_FEW_ROWS = 4
"""Up to this many rows products are made without tensor cores."""

Launch = Callable[[], object]


@dataclass(frozen=True, kw_only=True, slots=True)
class Product:
    """One product with weights: what goes in, what comes out, and where."""

    source: Tensor
    norm: Norm | None = None
    """Applied to the source first."""
    weights: Tensor
    columns: int
    target: Tensor
    kind: int
    """Of the targets that the kernels know."""
    layer: int = 0
    bias: Tensor | None = None
    mix_weight: Tensor | None = None
    first: int = 0
    """Which of queries, keys and values the first column belongs to, as a column."""
    num_layers: int = 1
    """Layers that one launch serves."""
    weight_stride: int = 0
    pass_number: int = 1
    to_cache: bool = False
    advances: bool = False
    """Whether the position moves on."""


class Launches:
    """Scratch memory for one token of every row, and the launches that compute it."""

    def __init__(
        self,
        weights: Weights,
        layout: Layout,
        memory: Memory,
        *,
        num_heads: int,
        early: bool,
    ) -> None:
        self.weights, self.layout, self.memory = weights, layout, memory
        self.early = early
        self.rows, self.num_heads = memory.num_rows, num_heads
        self.width = weights.embedding.shape[1]
        self.size = self.width // num_heads
        self.is_few = self.rows <= MOST_FEW_ROWS
        self.attention = attention_tiles(
            self.rows,
            num_heads,
            layout.num_visible,
            self.size,
            weights.dtype,
            is_rotary=weights.turns is not None,
        )
        device, dtype = weights.embedding.device, weights.dtype

        def rows(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(*shape, dtype=dtype, device=device)

        self.tokens = rows(self.rows, dtype=torch.int64)
        self.logits = rows(self.rows, weights.logits.shape[0])
        self._hidden, self._embedded, self._mix = rows(3, self.rows, self.width)
        self._normed = rows(weights.num_layers, self.rows, self.width, dtype=dtype)
        self._queries = rows(self.rows, self.width, dtype=dtype)
        self._attended = rows(self.rows, self.width, dtype=dtype)
        shares = self.attention.shares
        self._highest, self._total = rows(2, shares, self.rows, num_heads)
        self._inner = rows(self.rows, weights.expand.shape[1], dtype=dtype)
        self._counts = rows(max(4096, self.rows * num_heads), dtype=torch.int32)
        self._partial = rows(shares * self.rows * self.width)
        self._launches = list(self._all())

    def run(self) -> None:
        """Take the tokens to their logits, and the position one on."""
        for launch in self._launches:
            launch()

    def __len__(self) -> int:
        """Kernels a token."""
        return len(self._launches)

    def _all(self) -> Iterator[Launch]:
        yield self._embed()
        for pass_number, layer in self.layout.trips:
            yield from self._attention(pass_number, layer)
            yield from self._feed_forward(layer)
        if self.layout.freeze_after is not None:
            yield from self._freeze()
        weights = self.weights
        yield from self._product(
            Product(
                source=self._hidden,
                norm=weights.last_norm,
                weights=weights.logits,
                bias=weights.logits_bias,
                columns=weights.logits.shape[0],
                target=self.logits,
                kind=kernels.STORE.value,
                advances=True,
            )
        )

    def _embed(self) -> Launch:
        weights, mix = self.weights, self.weights.mix
        return partial(
            kernels.embed_rows[(self.rows,)],
            self.tokens,
            weights.embedding,
            self._hidden,
            self._embedded,
            self._mix,
            self._mix if mix is None else mix,
            weights.embedding.shape[0],
            WIDTH=self.width,
            COPY=self.layout.freeze_after == 0,
            MIX=mix is not None,
            BLOCK=triton.next_power_of_2(self.width),
        )

    def _attention(self, pass_number: int, layer: int) -> Iterator[Launch]:
        weights, width = self.weights, self.width
        keep = partial(
            Product,
            source=self._hidden,
            target=self._queries,
            kind=kernels.KEEP.value,
            pass_number=pass_number,
        )
        own = self.layout.attends_self and weights.shared is None
        yield from self._product(
            keep(
                norm=norm_of_layer(weights.attention_norm, layer),
                weights=weights.projections[layer],
                columns=3 * width if own else width,
                layer=layer,
            )
        )
        if self.layout.attends_self and weights.shared is not None:
            yield from self._product(
                keep(
                    norm=weights.shared_norm,
                    weights=weights.shared,
                    columns=2 * width,
                    first=width,
                    layer=layer,
                )
            )
        yield self._attend(pass_number, layer)
        yield from self._product(
            Product(
                source=self._attended,
                weights=weights.output[layer],
                columns=width,
                target=self._hidden,
                kind=kernels.ADD.value,
            )
        )

    def _feed_forward(self, layer: int) -> Iterator[Launch]:
        weights = self.weights
        yield from self._product(
            Product(
                source=self._hidden,
                norm=norm_of_layer(weights.feed_forward_norm, layer),
                weights=weights.expand[layer],
                bias=weights.expand_bias[layer],
                columns=weights.expand.shape[1],
                target=self._inner,
                kind=kernels.RELU.value,
            )
        )
        yield from self._product(
            Product(
                source=self._inner,
                weights=weights.contract[layer],
                bias=weights.contract_bias[layer],
                columns=self.width,
                target=self._hidden,
                kind=kernels.ADD.value,
                mix_weight=None if weights.mix is None else weights.mix[layer + 1 :],
            )
        )

    def _freeze(self) -> Iterator[Launch]:
        """Keys and values of the token as it is remembered, for all layers at once."""
        weights, width = self.weights, self.width
        remembered = self._hidden if weights.mix is None else self._mix
        if self.layout.freeze_after == 0:
            remembered = self._embedded
        freeze = partial(
            Product,
            source=remembered,
            columns=2 * width,
            target=self._queries,
            kind=kernels.KEEP.value,
            first=width,
            to_cache=True,
        )
        if weights.shared is not None:
            yield from self._product(freeze(norm=weights.shared_norm, weights=weights.shared))
            return
        projections = weights.projections
        yield from self._product(
            freeze(
                norm=weights.attention_norm,
                weights=projections[:, width:],
                num_layers=weights.num_layers,
                weight_stride=projections.stride(0),
            )
        )

    def _product(self, product: Product) -> Iterator[Launch]:
        if self.is_few:
            yield self._few(product)
            return
        source = product.source
        if product.norm is not None:
            yield self._norm(product.norm, source, product.num_layers)
            source = self._normed
        yield self._many(product, source)

    def _few(self, product: Product) -> Launch:
        weights, norm = product.weights, product.norm
        inner = weights.shape[-1]
        block_n, block_k, num_warps = few_tiles(product.columns, inner, weights.dtype)
        nothing = self._hidden
        return self._launch(
            kernels.product_few,
            (triton.cdiv(product.columns, block_n), product.num_layers),
            product.source,
            weights,
            nothing if product.bias is None else product.bias,
            nothing if norm is None else norm.gain,
            nothing if norm is None else norm.shift,
            1e-5 if norm is None else norm.epsilon,
            *self._targets(product),
            **self._facts(product),
            NORM=norm is not None,
            ROWS=self.rows,
            BLOCK_N=block_n,
            BLOCK_K=block_k,
            num_warps=num_warps,
        )

    def _many(self, product: Product, source: Tensor) -> Launch:
        weights = product.weights
        inner = weights.shape[-1]
        tiles = many_tiles(self.rows, product.columns, inner, weights.dtype)
        num_tiles = triton.cdiv(product.columns, tiles.columns)
        num_blocks = triton.cdiv(self.rows, tiles.rows)
        parts = 1 if product.num_layers > 1 else tiles.parts
        part = triton.cdiv(triton.cdiv(inner, parts), tiles.inner) * tiles.inner
        if parts > 1:
            self._make_room(parts * self.rows * product.columns, num_tiles * num_blocks)
        return self._launch(
            kernels.product_many,
            (num_tiles, parts, num_blocks * product.num_layers),
            source,
            weights,
            self._hidden if product.bias is None else product.bias,
            self._partial,
            self._counts,
            *self._targets(product),
            **self._facts(product),
            PARTS=parts,
            PART=part,
            BLOCK_M=tiles.rows,
            BLOCK_N=tiles.columns,
            BLOCK_K=tiles.inner,
            num_warps=4,
            num_stages=tiles.num_stages,
        )

    def _targets(self, product: Product) -> tuple[Any, ...]:
        """Arguments that say where a product goes; all products have them in common."""
        weight = product.mix_weight
        return (
            product.target,
            self._mix,
            self._mix if weight is None else weight,
            self._queries,
            self.memory.keys,
            self.memory.values,
            self.memory.cache_base // self.size if product.to_cache else 0,
            self.memory.position,
            product.layer,
            product.pass_number,
            self.rows,
        )

    def _facts(self, product: Product) -> dict[str, Any]:
        """Constants; what a product does not need is the same for all, so as to compile less."""
        keeps = product.kind == kernels.KEEP.value
        return {
            "WEIGHT_STRIDE": product.weight_stride,
            "COLUMNS": product.columns,
            "INNER": product.weights.shape[-1],
            "TARGET": product.kind,
            "BIAS": product.bias is not None,
            "MIX": product.mix_weight is not None,
            "FIRST": product.first,
            "ADVANCE": product.advances,
            "HEADS": self.num_heads if keeps else 1,
            "SIZE": self.size if keeps else 1,
            **self._ring_facts(keeps=keeps, to_cache=product.to_cache),
        }

    def _ring_facts(self, *, keeps: bool, to_cache: bool) -> dict[str, Any]:
        layout = self.layout
        if not keeps or to_cache:
            capacity = layout.num_cached if to_cache else 1
            return {"CAPACITY": capacity, "CHUNK": 1, "PASSES": 1, "STAIRS": False}
        return {
            "CAPACITY": layout.capacity,
            "CHUNK": layout.chunk,
            "PASSES": layout.num_passes,
            "STAIRS": layout.is_stairs,
        }

    def _norm(self, norm: Norm, source: Tensor, num_layers: int) -> Launch:
        return self._launch(
            kernels.norm_rows,
            (self.rows, num_layers),
            source,
            norm.gain,
            norm.shift,
            self._normed,
            self.rows,
            norm.epsilon,
            WIDTH=self.width,
            BLOCK=triton.next_power_of_2(self.width),
        )

    def _attend(self, pass_number: int, layer: int) -> Launch:
        weights, layout, memory = self.weights, self.layout, self.memory
        turns, table = weights.turns, weights.table
        tiles, nothing = self.attention, self._hidden
        return self._launch(
            attend_rings,
            (self.rows * self.num_heads, tiles.shares),
            self._queries,
            memory.keys,
            memory.values,
            memory.cache_base // self.size,
            nothing if table is None else table,
            nothing if turns is None else turns[0],
            nothing if turns is None else turns[1],
            memory.starts,
            memory.position,
            self._attended,
            self._partial,
            self._highest,
            self._total,
            self._counts,
            layer,
            0 if weights.shared is not None else layer,
            pass_number,
            self.rows,
            self.size**-0.5,
            HEADS=self.num_heads,
            SIZE=self.size,
            UNITS=triton.next_power_of_2(self.size),
            CAPACITY=layout.capacity,
            CACHED=layout.num_cached,
            CHUNK=layout.chunk,
            PASSES=layout.num_passes,
            CHUNKS=layout.num_chunks,
            STAIRS=layout.is_stairs,
            SPAN=layout.span,
            SELF=int(layout.attends_self),
            DISTANCES=1 if table is None else table.shape[0],
            ROTARY=turns is not None,
            SHARES=tiles.shares,
            BLOCK=tiles.block,
            num_warps=tiles.num_warps,
        )

    def _make_room(self, num_partial: int, num_counts: int) -> None:
        """Grow the scratch memory; launches made before keep what they were given."""
        if self._partial.numel() < num_partial:
            self._partial = self._hidden.new_zeros(num_partial)
        if self._counts.numel() < num_counts:
            self._counts = self._counts.new_zeros(num_counts)

    def _launch(
        self,
        kernel: Any,  # noqa: ANN401
        grid: tuple[int, ...],
        *arguments: Any,  # noqa: ANN401
        **options: Any,  # noqa: ANN401
    ) -> Launch:
        if self.early:
            options["launch_pdl"] = True
        return partial(kernel[grid], *arguments, **options, EARLY=self.early)


def norm_of_layer(norm: Norm, layer: int) -> Norm:
    """The norm of one layer."""
    part = slice(layer, layer + 1)
    return Norm(gain=norm.gain[part], shift=norm.shift[part], epsilon=norm.epsilon)
