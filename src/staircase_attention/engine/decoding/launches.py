"""The kernels by which one token of every row goes through a model, in order."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional

from staircase_attention.engine.decoding.plan import BANK_SEGMENTS, Form
from staircase_attention.engine.decoding.weights import Norm, Weights
from staircase_attention.engine.kernels import decoding as kernels
from staircase_attention.engine.kernels.decoding_attention import attend_segments

if TYPE_CHECKING:
    from staircase_attention.engine.decoding.decoder import DecoderMemory

# Up to this many rows products are made without tensor cores. Several tokens of such rows are, too,
# up to a number that is still fast: their results are those of one token at a time.
MOST_FEW_ROWS = 4
MOST_FEW_TOKENS = 16
# A matrix of at most this many weights is read again for each of a few rows.
MOST_READ_AGAIN = 1 << 20
# About the number of multiprocessors of a large GPU.
ENOUGH_PROGRAMS = 128
# Programs that share the keys of one head, at most.
MOST_SHARES = 8
# Keys that are worth a program of their own.
FEWEST_KEYS = 32
# Bytes of a number in half precision.
HALF = 2

Launch = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Product:
    """source · weightsᵀ: one launch, or two where rows are normed first.

    source [rows, inner], weights [columns, inner] or [layers, columns, inner].
    """

    source: Tensor
    weights: Tensor
    target: Tensor
    kind: tl.constexpr
    """Of the targets that the kernels know."""
    norm: Norm | None = None
    """Applied to the source first."""
    is_gated: bool = False
    """Whether the source is silu(first half) * second half."""
    bias: Tensor | None = None
    mix: tl.constexpr = kernels.NO_MIX
    mix_weight: Tensor | None = None
    base: int = 0
    """Where keys and values go: the first vector of their memory,"""
    capacity: int = 1
    """tokens in each of its rings,"""
    plan: Tensor | None = None
    """and the numbers from which the place of a token follows."""

    @property
    def num_layers(self) -> int:
        """Layers that one launch serves."""
        return len(self.weights) if self.weights.dim() == 3 else 1  # noqa: PLR2004

    @property
    def read(self) -> tl.constexpr:
        """How the kernels read the source."""
        if self.norm is not None:
            return kernels.LAYER_NORM if self.norm.centres else kernels.RMS_NORM
        return kernels.SWIGLU if self.is_gated else kernels.AS_IS


class Launches:
    """Scratch memory for one token of every row, and the launches that compute it."""

    def __init__(
        self,
        weights: Weights,
        memory: "DecoderMemory",
        *,
        attends_self: bool,
        early: bool,
        num_tokens: int = 1,
    ) -> None:
        self.weights, self.memory, self.num_tokens = weights, memory, num_tokens
        self.attends_self, self.early = attends_self, early
        # Successive tokens of a row are rows here, one after another. So are the rows of passes
        # that are taken at once, all of a pass after those of the one before.
        self.rows = memory.num_rows * num_tokens
        num_rows = self.rows * memory.sizes.num_passes
        self.num_heads, self.size = memory.num_heads, memory.head_size
        self.width = self.num_heads * self.size
        # As for one token: the sums of several are then made in the same order.
        self.attention = attention_tiles(
            num_rows // num_tokens,
            self.num_heads,
            memory.sizes.num_keys,
            self.size,
            weights.dtype,
            is_rotary=weights.table is None,
        )

        def scratch(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(*shape, dtype=dtype, device=weights.embedding.device)

        dtype, shares = weights.dtype, self.attention.shares
        self.tokens = scratch(self.rows, dtype=torch.int64)
        self.logits = scratch(self.rows, len(weights.logits))
        # Between layers hidden vectors stay in float32; only what products read is in their dtype.
        self._hidden, self._mix, self._entered, self._gates = scratch(4, num_rows, self.width)
        self._normed = scratch(len(weights.output), num_rows, self.width, dtype=dtype)
        self._queries, self._attended = scratch(2, num_rows, self.width, dtype=dtype)
        self._inner = scratch(num_rows, weights.expand.shape[1], dtype=dtype)
        # Parts of sums, and how many programs have written theirs: kernels reset these counts.
        self._tops = scratch(2, shares, num_rows, self.num_heads)
        self._partial = scratch(shares * num_rows * self.width)
        self._counts = scratch(max(4096, num_rows * self.num_heads), dtype=torch.int32)

    def all(self, form: Form, most_passes: int | None = None) -> Iterator[Launch]:
        """What takes the tokens to their logits, and the position one on."""
        weights = self.weights
        mixes = [weights.mix is not None and step.cached == "output" for step in form]
        # The first step of the recurrence, and those that see again what entered it.
        entry = next(n for n, step in enumerate(form) if step.layers.start < weights.num_recurring)
        # Lagged passes see the input of the first again: the embedding, or what a prelude left.
        adds = entry == 0 and weights.injection in ("none", "add")
        yield self._embed(starts_mix=mixes[0], adds=adds)
        first, last = self._hidden[: self.rows], self._hidden[-self.rows :]
        is_batch = len(first) < len(self._hidden)
        for number, (layers, cached, span, pass_number, lags) in enumerate(form):
            if lags or (most_passes is not None and pass_number > most_passes):
                continue
            plan = self.memory.plan[number]
            # All passes at once are in the recurrence only.
            is_inside = layers.start < weights.num_recurring
            hidden = self._hidden if is_inside else first if number < entry else last
            carries = is_inside and is_batch
            if carries:
                if not adds:
                    yield from self._inject(self._hidden[self.rows :], first)
            elif weights.injection != "none" and number == entry:
                yield partial(torch.add, hidden, 0.0, out=self._entered)
            elif weights.injection != "none" and pass_number > 1:
                yield from self._inject(hidden, self._entered)
            if cached == "input":
                yield from self._freeze(hidden, plan)
            for layer in layers:
                yield from self._attention(hidden, layer, plan, span)
                # A step that ends with the input of a mixture starts it; its layers add to it.
                starts_next = layer == layers[-1] and any(mixes[number + 1 : number + 2])
                mix = kernels.ADD_MIX if mixes[number] else kernels.NO_MIX
                mix = kernels.START_MIX if starts_next else mix
                mix = kernels.CARRY if carries and layer == layers[-1] else mix
                yield from self._feed_forward(hidden, layer, mix)
            if cached == "output":
                yield from self._freeze(self._mix if mixes[number] else hidden, plan)
        yield from self._product(
            Product(
                *(last, weights.logits, self.logits, kernels.LOGITS),
                norm=weights.last_norm,
                bias=weights.logits_bias,
            )
        )

    def _embed(self, *, starts_mix: bool, adds: bool) -> Launch:
        weights, memory = self.weights, self.memory
        return partial(
            kernels.embed_rows[(len(self._hidden),)],
            self.tokens,
            weights.embedding,
            self._hidden,
            self._mix,
            weights.mix if starts_mix else self._mix,
            memory.carried,
            memory.position,
            self.rows,
            len(weights.embedding),
            WIDTH=self.width,
            MIX=starts_mix,
            PLACES=memory.sizes.num_carried,
            ADDS=adds,
            BLOCK=triton.next_power_of_2(self.width),
        )

    def _inject(self, hidden: Tensor, entered: Tensor) -> Iterator[Launch]:
        """Vectors h and what entered, e: h + e, norm(h) + e, or h + sigmoid(gate(h)) * (e - h)."""
        each = (-1, *entered.shape)
        if self.weights.gate is None:
            norm = self.weights.state_norm
            states = hidden.view(each)
            add = states.add_ if norm is None else partial(_add_normed, states, norm)
            yield partial(add, entered)
            return
        weight, bias = self.weights.gate
        source, gates = self._normed[0, : len(hidden)], self._gates[: len(hidden)]
        # A kernel, not a copy of memory: the next one may be launched early behind it.
        yield partial(torch.add, hidden, 0.0, out=source)
        yield from self._product(Product(source, weight, gates, kernels.ROWS_ONLY, bias=bias))
        yield partial(torch.sigmoid, gates, out=gates)
        yield partial(hidden.view(each).lerp_, entered, gates.view(each))

    def _attention(
        self, hidden: Tensor, layer: int, plan: Tensor, span: int | None
    ) -> Iterator[Launch]:
        weights, rows = self.weights, slice(len(hidden))
        # Queries, keys, values; queries only where a token does not see itself or where all layers
        # share the projections of keys and values.
        own = weights.projections[layer]
        keeps = self.attends_self and weights.shared is None
        queries = Product(
            hidden,
            own if keeps else own[: self.width],
            self._queries[rows],
            kernels.KEEP if keeps else kernels.ROWS_ONLY,
            norm=weights.attention_norm.of_layers(slice(layer, layer + 1)),
            base=self.memory.bank_base(layer),
            capacity=self.memory.sizes.capacity,
            plan=plan,
        )
        yield from self._product(queries)
        if self.attends_self and weights.shared is not None:
            shared = {"norm": weights.shared_norm, "weights": weights.shared, "kind": kernels.KEEP}
            yield from self._product(replace(queries, **shared))
        yield self._attend(len(hidden), layer, plan, span)
        yield from self._product(
            Product(self._attended[rows], weights.output[layer], hidden, kernels.ADD)
        )

    def _feed_forward(self, hidden: Tensor, layer: int, mix: tl.constexpr) -> Iterator[Launch]:
        weights, inner = self.weights, self._inner[: len(hidden)]
        activations = {"relu": kernels.RELU, "gelu": kernels.GELU, "swiglu": kernels.ROWS_ONLY}
        yield from self._product(
            Product(
                *(hidden, weights.expand[layer], inner),
                activations[weights.feed_forward],
                norm=weights.feed_forward_norm.of_layers(slice(layer, layer + 1)),
                bias=None if weights.expand_bias is None else weights.expand_bias[layer],
            )
        )
        mix_weight = None
        if weights.mix is not None:
            mix_weight = weights.mix[0 if mix is kernels.START_MIX else layer + 1 :]
        yield from self._product(
            Product(
                *(inner, weights.contract[layer], hidden, kernels.ADD),
                is_gated=weights.feed_forward == "swiglu",
                bias=None if weights.contract_bias is None else weights.contract_bias[layer],
                mix=mix,
                mix_weight=mix_weight,
                capacity=self.memory.sizes.num_carried if mix is kernels.CARRY else 1,
            )
        )

    def _freeze(self, remembered: Tensor, plan: Tensor) -> Iterator[Launch]:
        """Keys and values of the token as it is remembered, for all layers at once."""
        weights = self.weights
        recurring = slice(weights.num_recurring)
        own = weights.projections[recurring, self.width :]  # [layers, keys and values, width]
        yield from self._product(
            Product(
                remembered,
                own if weights.shared is None else weights.shared,
                self._queries,
                kernels.KEEP,
                norm=weights.shared_norm or weights.attention_norm.of_layers(recurring),
                base=self.memory.cache_base(0),
                capacity=self.memory.sizes.num_slots,
                plan=plan[2:],
            )
        )

    def _product(self, product: Product) -> Iterator[Launch]:
        norm, rows = product.norm, len(product.target)
        if rows // self.num_tokens <= MOST_FEW_ROWS and rows <= MOST_FEW_TOKENS:
            # Each program has whole rows of the source, and norms them itself.
            yield self._few(product)
        elif norm is None:
            yield self._many(product)
        else:
            yield self._launch(
                kernels.norm_rows,
                (rows, product.num_layers),
                product.source,
                norm.weights,
                self._normed,
                rows,
                norm.epsilon,
                WIDTH=self.width,
                READ=product.read.value,
                BLOCK=triton.next_power_of_2(self.width),
            )
            yield self._many(replace(product, source=self._normed, norm=None))

    def _few(self, product: Product) -> Launch:
        norm, (columns, inner) = product.norm, product.weights.shape[-2:]
        rows = len(product.target)
        block_n, block_k, num_warps = few_tiles(columns, inner, product.weights.dtype)
        is_small = rows <= MOST_FEW_ROWS and columns * inner <= MOST_READ_AGAIN
        together = 1 if rows == 1 or is_small else 4
        # There are more programs then. Warps, and so the order of a sum, stay as for one row.
        block_n *= 2 if rows > 1 and is_small else 1
        return self._launch(
            kernels.product_few,
            (triton.cdiv(columns, block_n), product.num_layers, triton.cdiv(rows, together)),
            product.source,
            product.weights,
            self._hidden if product.bias is None else product.bias,
            self._hidden if norm is None else norm.weights,
            1e-5 if norm is None else norm.epsilon,
            *self._targets(product),
            **self._facts(product),
            READ=product.read.value,
            ROWS=rows,
            TOGETHER=together,
            WARPS=num_warps,
            BLOCK_N=block_n,
            BLOCK_K=block_k,
            num_warps=num_warps,
        )

    def _many(self, product: Product) -> Launch:
        rows, (columns, inner) = len(product.target), product.weights.shape[-2:]
        tiles = many_tiles(rows, columns, inner, product.weights.dtype)
        num_tiles, num_blocks = triton.cdiv(columns, tiles.columns), triton.cdiv(rows, tiles.rows)
        # The inner sum in parts: the program that comes last adds them up, in a fixed order.
        parts = 1 if product.num_layers > 1 else tiles.parts
        if parts > 1:
            # Launches that were made before keep the memory they were given.
            if self._partial.numel() < parts * rows * columns:
                self._partial = self._hidden.new_zeros(parts * rows * columns)
            if self._counts.numel() < num_tiles * num_blocks:
                self._counts = self._counts.new_zeros(num_tiles * num_blocks)
        return self._launch(
            kernels.product_many,
            (num_tiles, parts, num_blocks * product.num_layers),
            product.source,
            product.weights,
            self._hidden if product.bias is None else product.bias,
            self._partial,
            self._counts,
            *self._targets(product),
            rows,
            **self._facts(product),
            READ=product.read.value,
            PARTS=parts,
            BLOCK_M=tiles.rows,
            BLOCK_N=tiles.columns,
            BLOCK_K=tiles.inner,
            num_warps=4,
            num_stages=tiles.num_stages,
        )

    def _targets(self, product: Product) -> tuple[Any, ...]:
        """Where a product goes; all products have these arguments."""
        return (
            product.target,
            self.memory.carried if product.mix is kernels.CARRY else self._mix,
            self._mix if product.mix_weight is None else product.mix_weight,
            self.memory.keys,
            self.memory.values,
            product.base,
            self.memory.position,
            self.memory.plan if product.plan is None else product.plan,
        )

    def _facts(self, product: Product) -> dict[str, Any]:
        """Constants; those that a product does not need are the same for all, to compile less."""
        keeps, (columns, inner) = product.kind is kernels.KEEP, product.weights.shape[-2:]
        return {
            "WEIGHT_STRIDE": product.weights.stride(0) if product.num_layers > 1 else 0,
            "COLUMNS": columns,
            "INNER": inner,
            "TARGET": product.kind.value,
            "BIAS": product.bias is not None,
            "MIX": product.mix.value,
            "HEADS": self.memory.num_groups if keeps else 1,
            "SIZE": self.size if keeps else 1,
            "CAPACITY": product.capacity,
            "TOKENS": self.num_tokens,
        }

    def _attend(self, rows: int, layer: int, plan: Tensor, span: int | None) -> Launch:
        memory, tiles, table = self.memory, self.attention, self.weights.table
        sizes = memory.sizes
        return self._launch(
            attend_segments,
            (rows * self.num_heads, tiles.shares),
            self._queries,
            memory.keys,
            memory.values,
            memory.turns if table is None else table,
            memory.starts,
            memory.position,
            plan,
            self._attended,
            self._partial,
            self._tops,
            self._counts,
            memory.bank_base(layer),
            memory.cache_base(0 if self.weights.shared is not None else layer),
            self.size**-0.5,
            HEADS=self.num_heads,
            GROUPS=memory.num_groups,
            SIZE=self.size,
            UNITS=triton.next_power_of_2(self.size),
            CAPACITY=sizes.capacity,
            SLOTS=sizes.num_slots,
            SEGMENTS=sizes.num_frozen + (BANK_SEGMENTS if self.attends_self else 0),
            FROZEN=sizes.num_frozen,
            SPAN=span or 0,
            DISTANCES=sizes.reach if table is None else len(table),
            ROTARY=table is None,
            TOKENS=self.num_tokens,
            SHARES=tiles.shares,
            BLOCK=tiles.block,
            num_warps=tiles.num_warps,
            maxnreg=tiles.maxnreg,
        )

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


class Tiles(NamedTuple):
    """How a product of many rows is divided among programs."""

    rows: int
    columns: int
    inner: int
    parts: int
    num_stages: int


class AttentionTiles(NamedTuple):
    """How the keys of each row and head are divided among programs."""

    shares: int
    """Programs per row and head."""
    block: int
    """Keys that a program works on at once."""
    num_warps: int
    maxnreg: int | None
    """Registers per thread, limited where four programs share a multiprocessor."""


def few_tiles(columns: int, inner: int, dtype: torch.dtype) -> tuple[int, int, int]:
    """Columns and inner size of a program that reads its weights in one go, and its warps."""
    most = 16_384 if dtype.itemsize == HALF else 8_192
    block_k = triton.next_power_of_2(inner)
    block_n = max(1, min(64, most // block_k))
    while block_n > 1 and block_n * block_k > 4096 and columns < ENOUGH_PROGRAMS * block_n:  # noqa: PLR2004
        block_n //= 2
    return block_n, block_k, 8 if block_n * block_k > 8192 else 4  # noqa: PLR2004


def many_tiles(rows: int, columns: int, inner: int, dtype: torch.dtype) -> Tiles:
    """Tiles for tensor cores, the inner size in parts where there would be few programs."""
    is_half = dtype.itemsize == HALF
    block_m = min(64, max(16, triton.next_power_of_2(rows)))
    block_n = 32
    num_programs = triton.cdiv(columns, block_n) * triton.cdiv(rows, block_m)
    parts = max(1, min(ENOUGH_PROGRAMS * 3 // 2 // num_programs, inner // 256, 8))
    return Tiles(
        rows=block_m,
        columns=block_n,
        inner=128 if is_half else 32,
        parts=1 << (parts.bit_length() - 1),
        num_stages=4 if is_half else 2,
    )


def _add_normed(hidden: Tensor, norm: Norm, entered: Tensor) -> None:
    """Let h become norm(h) + e."""
    gains, shifts = norm.weights[0]
    if norm.centres:
        normed = functional.layer_norm(hidden, gains.shape, gains, shifts, norm.epsilon)
    else:
        normed = functional.rms_norm(hidden, gains.shape, gains, norm.epsilon)
    torch.add(normed, entered, out=hidden)


def attention_tiles(
    rows: int, heads: int, keys: int, size: int, dtype: torch.dtype, *, is_rotary: bool
) -> AttentionTiles:
    """Shares for every multiprocessor, and blocks that leave room for loads in progress."""
    wanted = triton.cdiv(ENOUGH_PROGRAMS, rows * heads)
    shares = min(wanted, triton.cdiv(keys, FEWEST_KEYS), MOST_SHARES)
    shares = 1 << (shares.bit_length() - 1)
    # A program alone on its multiprocessor works on more at once than one of several.
    is_alone = rows * heads * shares <= ENOUGH_PROGRAMS
    room = 49_152 if is_alone else 24_576
    units = triton.next_power_of_2(size)
    key_bytes = units * (2 * dtype.itemsize + (8 if is_rotary else dtype.itemsize))
    most = min(64, max(16, triton.next_power_of_2(triton.cdiv(keys, shares))))
    block = max(16, min(most, 1 << ((room // key_bytes).bit_length() - 1)))
    num_warps = min(8, max(1, block * units // 1024))
    # The compiler may use more than it needs, and a fourth program would not fit.
    maxnreg = None if is_alone or num_warps < 4 else 65_536 // (4 * 32 * num_warps)  # noqa: PLR2004
    return AttentionTiles(shares=shares, block=block, num_warps=num_warps, maxnreg=maxnreg)
