"""Attention of one token a row to keys and values in rings; see `decoding` for what rings are."""

# mypy: disable-error-code="untyped-decorator,no-untyped-def"

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from staircase_attention.kernels.decoding import slot_of


@triton.jit
def load_block(begin, stop, first, now, frozen, bank, cache, keys, values, table, cosines, sines,
               half, inside, SIZE: tl.constexpr, CAPACITY: tl.constexpr, CACHED: tl.constexpr,
               DISTANCES: tl.constexpr, ROTARY: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """Keys, values and what their distances bring, in halves of a head."""
    number = begin + tl.arange(0, BLOCK)
    there = first + number
    place = (bank + there % CAPACITY) * SIZE
    if CACHED > 0:
        place = tl.where(there < frozen, (cache + there % CACHED) * SIZE, place)
    mask = (number < stop)[:, None] & inside[None, :]
    place_1 = place[:, None] + half[None, :]
    place_2 = place_1 + SIZE // 2
    key_1 = tl.load(keys + place_1, mask=mask, other=0.0)
    key_2 = tl.load(keys + place_2, mask=mask, other=0.0)
    value_1 = tl.load(values + place_1, mask=mask, other=0.0)
    value_2 = tl.load(values + place_2, mask=mask, other=0.0)
    distance = (now - there).to(tl.int32)[:, None]
    if ROTARY:
        turn = distance * (SIZE // 2) + half[None, :]
        extra_1 = tl.load(cosines + turn, mask=mask, other=0.0)
        extra_2 = tl.load(sines + turn, mask=mask, other=0.0)
    else:
        vector = tl.minimum(distance, DISTANCES - 1) * SIZE + half[None, :]
        extra_1 = tl.load(table + vector, mask=mask, other=0.0)
        extra_2 = tl.load(table + vector + SIZE // 2, mask=mask, other=0.0)
    return key_1, key_2, value_1, value_2, extra_1, extra_2


@triton.jit(do_not_specialize=["layer", "cache_layer", "pass_number", "rows", "cache_base"])
def attend_rings(queries, keys, values, cache_base, table, cosines, sines, starts, position,
                 attended, highest, total, layer, cache_layer, pass_number, rows, scale,
                 HEADS: tl.constexpr, SIZE: tl.constexpr, HALF: tl.constexpr,
                 CAPACITY: tl.constexpr, CACHED: tl.constexpr, CHUNK: tl.constexpr,
                 PASSES: tl.constexpr, CHUNKS: tl.constexpr, STAIRS: tl.constexpr,
                 SPAN: tl.constexpr, SELF: tl.constexpr, DISTANCES: tl.constexpr,
                 ROTARY: tl.constexpr, SHARES: tl.constexpr, BLOCK: tl.constexpr,
                 EARLY: tl.constexpr):  # fmt: skip
    """What one head of one row finds among its share of the keys in sight.

    Keys before the first position of the bank come from the cache. A row or share without any key
    finds zero. Only the query and the token's own key are new: all else was there before this
    token, and can be asked for before the kernel ahead has ended.
    """
    if EARLY:
        gdc_launch_dependents()
    row, head, share = tl.program_id(0) // HEADS, tl.program_id(0) % HEADS, tl.program_id(1)
    now = tl.load(position)
    slot = slot_of(now, pass_number, CHUNK, PASSES, STAIRS)
    first = tl.load(starts + row)
    frozen = tl.cast(0, tl.int64)
    if STAIRS:
        step = now // CHUNK + pass_number - 1
        frozen = tl.maximum(step - PASSES + 1, 0) * CHUNK
        first = tl.maximum(first, tl.minimum(tl.maximum(step - CHUNKS + 1, 0) * CHUNK, frozen))
    if SPAN > 0:
        first = tl.maximum(first, now - SPAN + 1)
    num_keys = tl.maximum(now - first, 0).to(tl.int32)
    each = tl.cdiv(tl.cdiv(num_keys, SHARES), BLOCK) * BLOCK
    begin = share * each
    stop = tl.minimum(num_keys, begin + each)
    bank = (((layer * PASSES + slot) * rows + row) * HEADS + head) * CAPACITY
    cache = cache_base + ((tl.cast(cache_layer, tl.int64) * rows + row) * HEADS + head) * CACHED
    half = tl.arange(0, HALF)
    inside = half < SIZE // 2
    key_1, key_2, value_1, value_2, extra_1, extra_2 = load_block(
        begin, stop, first, now, frozen, bank, cache, keys, values, table, cosines, sines, half,
        inside, SIZE, CAPACITY, CACHED, DISTANCES, ROTARY, BLOCK)  # fmt: skip
    if EARLY:
        gdc_wait()
    # A head in two halves, which is how rotary positions pair its units.
    query = queries + (row * HEADS + head) * SIZE + half
    query_1 = tl.load(query, mask=inside, other=0.0).to(tl.float32) * scale
    query_2 = tl.load(query + SIZE // 2, mask=inside, other=0.0).to(tl.float32) * scale
    top = tl.full([], float("-inf"), tl.float32)
    weights_sum = tl.zeros([], tl.float32)
    found_1 = tl.zeros([HALF], tl.float32)
    found_2 = tl.zeros([HALF], tl.float32)
    if SELF:
        mine = inside & (share == 0)
        own = (bank + now % CAPACITY) * SIZE + half
        own_1 = tl.load(keys + own, mask=mine, other=0.0).to(tl.float32)
        own_2 = tl.load(keys + own + SIZE // 2, mask=mine, other=0.0).to(tl.float32)
        if not ROTARY:
            own_1 += tl.load(table + half, mask=inside, other=0.0).to(tl.float32)
            own_2 += tl.load(table + SIZE // 2 + half, mask=inside, other=0.0).to(tl.float32)
        score = tl.sum(query_1 * own_1 + query_2 * own_2, axis=0)
        top = tl.where(share == 0, score, float("-inf"))
        weights_sum = tl.where(share == 0, 1.0, 0.0)
        found_1 = tl.load(values + own, mask=mine, other=0.0).to(tl.float32)
        found_2 = tl.load(values + own + SIZE // 2, mask=mine, other=0.0).to(tl.float32)
    while begin < stop:
        if ROTARY:
            turned_1 = query_1[None, :] * extra_1 - query_2[None, :] * extra_2
            turned_2 = query_1[None, :] * extra_2 + query_2[None, :] * extra_1
            scores = tl.sum(turned_1 * key_1.to(tl.float32) + turned_2 * key_2.to(tl.float32),
                            axis=1)  # fmt: skip
        else:
            sum_1 = key_1.to(tl.float32) + extra_1.to(tl.float32)
            sum_2 = key_2.to(tl.float32) + extra_2.to(tl.float32)
            scores = tl.sum(query_1[None, :] * sum_1 + query_2[None, :] * sum_2, axis=1)
        scores = tl.where(begin + tl.arange(0, BLOCK) < stop, scores, float("-inf"))
        higher = tl.maximum(top, tl.max(scores, axis=0))
        fade = tl.exp(top - higher)
        weights = tl.exp(scores - higher)
        weights_sum = weights_sum * fade + tl.sum(weights, axis=0)
        found_1 = found_1 * fade + tl.sum(weights[:, None] * value_1.to(tl.float32), axis=0)
        found_2 = found_2 * fade + tl.sum(weights[:, None] * value_2.to(tl.float32), axis=0)
        top = higher
        begin += BLOCK
        key_1, key_2, value_1, value_2, extra_1, extra_2 = load_block(
            begin, stop, first, now, frozen, bank, cache, keys, values, table, cosines, sines,
            half, inside, SIZE, CAPACITY, CACHED, DISTANCES, ROTARY, BLOCK)  # fmt: skip
    if SHARES == 1:
        inverse = tl.where(weights_sum > 0, 1.0 / tl.where(weights_sum > 0, weights_sum, 1.0), 0.0)
        found_1 *= inverse
        found_2 *= inverse
    else:
        tl.store(highest + (share * rows + row) * HEADS + head, top)
        tl.store(total + (share * rows + row) * HEADS + head, weights_sum)
    result = attended + ((share * rows + row) * HEADS + head) * SIZE + half
    kind = attended.dtype.element_ty
    tl.store(result, found_1.to(kind), mask=inside)
    tl.store(result + SIZE // 2, found_2.to(kind), mask=inside)
