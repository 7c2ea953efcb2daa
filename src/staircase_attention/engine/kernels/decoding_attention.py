"""Attention of one token a row to keys and values in rings; see `decoding` for what rings are."""

# mypy: disable-error-code="untyped-decorator,no-untyped-def"

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from staircase_attention.engine.kernels.decoding import send_for, slot_of

LOG2_E = tl.constexpr(1.4426950408889634)
"""exp(x) = 2 ** (x log2(e))"""
LOWEST = tl.constexpr(-1e30)
"""Below all scores, and finite: what has no key in sight must not subtract infinities."""


@triton.jit
def place_of(number, bank, in_ring, cache, in_cache, num_frozen, CAPACITY: tl.constexpr,
             CACHED: tl.constexpr):  # fmt: skip
    """Where keys lie that are counted from the first one in sight."""
    place = bank + (in_ring + number) % CAPACITY
    if CACHED > 0:
        place = tl.where(number < num_frozen, cache + (in_cache + number) % CACHED, place)
    return place


@triton.jit(do_not_specialize=["layer", "cache_layer", "pass_number", "rows", "cache_base"])
def attend_rings(queries, keys, values, cache_base, table, cosines, sines, starts, position,
                 attended, partial, highest, total, counts, layer, cache_layer, pass_number, rows,
                 scale, HEADS: tl.constexpr, SIZE: tl.constexpr, UNITS: tl.constexpr,
                 CAPACITY: tl.constexpr, CACHED: tl.constexpr, CHUNK: tl.constexpr,
                 PASSES: tl.constexpr, CHUNKS: tl.constexpr, STAIRS: tl.constexpr,
                 SPAN: tl.constexpr, SELF: tl.constexpr, DISTANCES: tl.constexpr,
                 ROTARY: tl.constexpr, SHARES: tl.constexpr, BLOCK: tl.constexpr,
                 EARLY: tl.constexpr):  # fmt: skip
    """What one head of one row finds among the keys in sight, which SHARES programs share.

    Keys before the first position of the bank come from the cache. A row without any key finds
    zero. Blocks of keys are on their way while another is worked on, and each place of a block has
    a softmax of its own until the end, so that inside the loop no threads meet but those of one
    key. Each share but the last to arrive leaves what it found behind; the last puts all together,
    always in the same order.

    Only the query and the token's own key are new: all else was there before this token, and is
    asked for before the kernel ahead has ended. UNITS is SIZE rounded up to a power of two.
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
    in_ring = (first % CAPACITY).to(tl.int32)
    cache, in_cache, num_frozen = bank, in_ring, 0
    if CACHED > 0:
        cache = cache_base + ((tl.cast(cache_layer, tl.int64) * rows + row) * HEADS + head) * CACHED
        in_cache = (first % CACHED).to(tl.int32)
        num_frozen = tl.minimum(tl.maximum(frozen - first, 0), num_keys).to(tl.int32)
    if EARLY:
        ahead = tl.minimum(begin + tl.arange(0, 2 * BLOCK), tl.maximum(stop - 1, 0))
        ahead = place_of(ahead, bank, in_ring, cache, in_cache, num_frozen, CAPACITY, CACHED)
        send_for(keys + ahead[:, None] * SIZE, 0, SIZE, SIZE)
        send_for(values + ahead[:, None] * SIZE, 0, SIZE, SIZE)
        gdc_wait()
    units = tl.arange(0, UNITS)
    inside = units < SIZE
    mine = (row * HEADS + head) * SIZE
    query = tl.load(queries + mine + units, mask=inside, other=0.0).to(tl.float32)
    query *= scale * LOG2_E
    if ROTARY:
        # Units are paired across the halves of a head: (a, b) turns to (a c - b s, a s + b c).
        is_first = units < SIZE // 2
        other = tl.where(is_first, units + SIZE // 2, units - SIZE // 2)
        across = tl.load(queries + mine + other, mask=inside, other=0.0).to(tl.float32)
        across *= tl.where(is_first, -scale, scale) * LOG2_E
        pair = tl.where(is_first, units, other)
    tops = tl.full([BLOCK], LOWEST, tl.float32)
    weight_sums = tl.zeros([BLOCK], tl.float32)
    gathered = tl.zeros([BLOCK, UNITS], tl.float32)
    # Stages have to be asked for: without matrix products the compiler makes none by itself.
    for start in tl.range(begin, stop, BLOCK, num_stages=3):
        number = start + tl.arange(0, BLOCK)
        is_seen = number < stop
        mask = is_seen[:, None] & inside[None, :]
        place = place_of(number, bank, in_ring, cache, in_cache, num_frozen, CAPACITY, CACHED)
        place = place[:, None] * SIZE + units[None, :]
        key = tl.load(keys + place, mask=mask, other=0.0).to(tl.float32)
        distance = num_keys - number
        if ROTARY:
            turn = distance[:, None] * (SIZE // 2) + pair[None, :]
            cosine = tl.load(cosines + turn, mask=mask, other=0.0)
            sine = tl.load(sines + turn, mask=mask, other=0.0)
            turned = query[None, :] * cosine + across[None, :] * sine
            scores = tl.sum(turned * key, axis=1)
        else:
            vector = tl.minimum(distance, DISTANCES - 1)[:, None] * SIZE + units[None, :]
            key += tl.load(table + vector, mask=mask, other=0.0).to(tl.float32)
            scores = tl.sum(query[None, :] * key, axis=1)
        value = tl.load(values + place, mask=mask, other=0.0).to(tl.float32)
        scores = tl.where(is_seen, scores, float("-inf"))
        higher = tl.maximum(tops, scores)
        fade = tl.exp2(tops - higher)
        weights = tl.exp2(scores - higher)
        tops = higher
        weight_sums = weight_sums * fade + weights
        gathered = gathered * fade[:, None] + weights[:, None] * value
    top = tl.max(tops, axis=0)
    if SELF:
        is_mine = inside & (share == 0)
        own = (bank + now % CAPACITY) * SIZE + units
        own_key = tl.load(keys + own, mask=is_mine, other=0.0).to(tl.float32)
        if not ROTARY:
            own_key += tl.load(table + units, mask=inside, other=0.0).to(tl.float32)
        own_value = tl.load(values + own, mask=is_mine, other=0.0).to(tl.float32)
        own_score = tl.where(share == 0, tl.sum(query * own_key, axis=0), float("-inf"))
        top = tl.maximum(top, own_score)
    fade = tl.exp2(tops - top)
    whole = tl.sum(weight_sums * fade, axis=0)
    found = tl.sum(gathered * fade[:, None], axis=0)
    if SELF:
        own_weight = tl.exp2(own_score - top)
        whole += own_weight
        found += own_weight * own_value
    is_last = True
    if SHARES > 1:
        # Of every share one after another; programs are counted by rows and heads.
        size = rows * HEADS
        there = share * size + tl.program_id(0)
        tl.store(partial + there * SIZE + units, found, mask=inside)
        tl.store(highest + there, top)
        tl.store(total + there, whole)
        tl.debug_barrier()
        count = counts + tl.program_id(0)
        is_last = tl.atomic_add(count, 1, sem="acq_rel") == SHARES - 1
        if is_last:
            tl.debug_barrier()
            shares = tl.arange(0, SHARES) * size + tl.program_id(0)
            share_tops = tl.load(highest + shares, cache_modifier=".cg")
            share_fade = tl.exp2(share_tops - tl.max(share_tops, axis=0))
            whole = tl.sum(share_fade * tl.load(total + shares, cache_modifier=".cg"), axis=0)
            parts = tl.load(partial + shares[:, None] * SIZE + units[None, :],
                            mask=inside[None, :], other=0.0, cache_modifier=".cg")  # fmt: skip
            found = tl.sum(share_fade[:, None] * parts, axis=0)
            tl.store(count, 0)
    if is_last:
        found *= tl.where(whole > 0, 1.0 / tl.where(whole > 0, whole, 1.0), 0.0)
        tl.store(attended + mine + units, found.to(attended.dtype.element_ty), mask=inside)
