"""Attention of one token per row to keys and values that lie in segments; see `decoding`."""

# mypy: disable-error-code="untyped-decorator,no-untyped-def,assignment"

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from staircase_attention.engine.kernels.decoding import send_for

# Numbers of a plan's row before its segments.
HEADER = tl.constexpr(4)
# exp(x) = 2 ** (x log2(e))
LOG2_E = tl.constexpr(1.4426950408889634)
# Below all scores, and finite: where no key is in sight, infinities must not be subtracted.
LOWEST = tl.constexpr(-1e30)


@triton.jit
def segments_of(plan, now, bank, cache, SEGMENTS: tl.constexpr, FROZEN: tl.constexpr,
                SPAN: tl.constexpr):  # fmt: skip
    """For each segment of a plan's row: its end, and place (in the bank) and distance of key 0.

    A row has (keys up to the end, place - number, position - number) for each segment. Key 0 is the
    oldest one in sight: with a SPAN, some keys of the row are not.
    """
    hidden = tl.cast(0, tl.int64)
    if SPAN > 0:
        hidden = tl.maximum(now - tl.load(plan + HEADER + 3 * SEGMENTS - 1) - (SPAN - 1), 0)
    ends, places, reaches = (), (), ()
    for number in tl.static_range(SEGMENTS):
        segment = plan + HEADER + 3 * number
        place = tl.load(segment + 1) + hidden
        if number < FROZEN:
            place += cache - bank
        if FROZEN == 0:
            # Half the registers where all keys are in the bank.
            place = place.to(tl.int32)
        ends = ends + ((tl.load(segment) - hidden).to(tl.int32),)  # noqa: RUF005
        places = places + (place,)  # noqa: RUF005
        reaches = reaches + ((now - tl.load(segment + 2) - hidden).to(tl.int32),)  # noqa: RUF005
    return ends, places, reaches


@triton.jit
def find(number, ends, places, reaches, SEGMENTS: tl.constexpr):
    """Where keys lie and how far back, given their numbers from the oldest one in sight."""
    place = places[SEGMENTS - 1] + number
    distance = reaches[SEGMENTS - 1] - number
    for back in tl.static_range(2, SEGMENTS + 1):
        is_before = number < ends[SEGMENTS - back]
        place = tl.where(is_before, places[SEGMENTS - back] + number, place)
        distance = tl.where(is_before, reaches[SEGMENTS - back] - number, distance)
    return place, distance


@triton.jit(do_not_specialize=["bank_base", "cache_base"])
def attend_segments(queries, keys, values, table, starts, position, plan, attended, partial, tops,
                    counts, bank_base, cache_base, scale, HEADS: tl.constexpr,
                    GROUPS: tl.constexpr, SIZE: tl.constexpr, UNITS: tl.constexpr,
                    CAPACITY: tl.constexpr, SLOTS: tl.constexpr, SEGMENTS: tl.constexpr,
                    FROZEN: tl.constexpr, SPAN: tl.constexpr, DISTANCES: tl.constexpr,
                    ROTARY: tl.constexpr, TOKENS: tl.constexpr, SHARES: tl.constexpr,
                    BLOCK: tl.constexpr, EARLY: tl.constexpr):  # fmt: skip
    """Σ_k softmax_k(q · (key_k + table[distance_k]) / √SIZE) value_k for one head of one row.

    Keys and values have GROUPS heads, each for HEADS / GROUPS heads of queries.

    Keys are numbered from the oldest one in sight; a plan's row gives the segments in which they
    lie, of which the first FROZEN ones are in the cache and the others in a bank. Keys of positions
    before the row's start are hidden, and so are all but the latest SPAN keys (0: none is); a row
    without any key gets zero. With ROTARY, `table` holds
    the cosines and sines [2, DISTANCES, SIZE / 2] by which a query turns instead.

    SHARES programs share the keys of a head. Loads of the next blocks of keys are under way while
    one is computed, and each of the BLOCK lanes has a softmax of its own until the end, so that
    inside the loop only the threads of one key exchange anything. Sums are in float32. Each share
    leaves its sums in `partial` [SHARES, rows, HEADS, SIZE] and `tops` [2, SHARES, rows, HEADS];
    the last one to arrive combines them, always in the same order.

    Only the query and the token's own key are new. All others were there before this token, and are
    prefetched before the kernel ahead has ended. UNITS is SIZE rounded up to a power of two.
    """
    # A token that sees itself has a bank.
    SELF: tl.constexpr = SEGMENTS > FROZEN
    if EARLY:
        gdc_launch_dependents()
    row, head, share = tl.program_id(0) // HEADS, tl.program_id(0) % HEADS, tl.program_id(1)
    # Of several tokens, each sees those before it: their keys are there before this kernel begins.
    now, owner = tl.load(position) + row % TOKENS, row // TOKENS
    start_of_row = (now - tl.load(starts + owner)).to(tl.int32)
    group = head // (HEADS // GROUPS)
    bank = ((tl.load(plan) + owner) * GROUPS + group) * CAPACITY + bank_base
    cache = (tl.cast(owner, tl.int64) * GROUPS + group) * SLOTS + cache_base
    ends, places, reaches = segments_of(plan, now, bank, cache, SEGMENTS, FROZEN, SPAN)
    keys += bank * SIZE
    values += bank * SIZE
    # The last segment of a bank ends at the present token, that of a cache where the row has it.
    num_keys = reaches[SEGMENTS - 1] if SELF else ends[SEGMENTS - 1]
    each = tl.cdiv(tl.cdiv(num_keys, SHARES), BLOCK) * BLOCK
    begin = share * each
    stop = tl.minimum(num_keys, begin + each)
    if EARLY:
        ahead = tl.minimum(begin + tl.arange(0, 2 * BLOCK), tl.maximum(stop - 1, 0))
        ahead, _ = find(ahead, ends, places, reaches, SEGMENTS)
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
    highest = tl.full([BLOCK], LOWEST, tl.float32)
    weight_sums = tl.zeros([BLOCK], tl.float32)
    gathered = tl.zeros([BLOCK, UNITS], tl.float32)
    # Stages have to be asked for: without matrix products the compiler makes none by itself.
    for start in tl.range(begin, stop, BLOCK, num_stages=3):
        number = start + tl.arange(0, BLOCK)
        place, distance = find(number, ends, places, reaches, SEGMENTS)
        is_seen = (number < stop) & (distance <= start_of_row)
        mask = is_seen[:, None] & inside[None, :]
        place = place[:, None] * SIZE + units[None, :]
        key = tl.load(keys + place, mask=mask, other=0.0).to(tl.float32)
        if ROTARY:
            turn = distance[:, None] * (SIZE // 2) + pair[None, :]
            cosine = tl.load(table + turn, mask=mask, other=0.0)
            sine = tl.load(table + DISTANCES * (SIZE // 2) + turn, mask=mask, other=0.0)
            turned = query[None, :] * cosine + across[None, :] * sine
            scores = tl.sum(turned * key, axis=1)
        else:
            vector = tl.minimum(distance, DISTANCES - 1)[:, None] * SIZE + units[None, :]
            key += tl.load(table + vector, mask=mask, other=0.0).to(tl.float32)
            scores = tl.sum(query[None, :] * key, axis=1)
        value = tl.load(values + place, mask=mask, other=0.0).to(tl.float32)
        scores = tl.where(is_seen, scores, float("-inf"))
        higher = tl.maximum(highest, scores)
        fade = tl.exp2(highest - higher)
        weights = tl.exp2(scores - higher)
        highest = higher
        weight_sums = weight_sums * fade + weights
        gathered = gathered * fade[:, None] + weights[:, None] * value
    top = tl.max(highest, axis=0)
    if SELF:
        is_mine = inside & (share == 0)
        own = (now + tl.load(plan + 1)) * SIZE + units
        own_key = tl.load(keys + own, mask=is_mine, other=0.0).to(tl.float32)
        if not ROTARY:
            own_key += tl.load(table + units, mask=inside, other=0.0).to(tl.float32)
        own_value = tl.load(values + own, mask=is_mine, other=0.0).to(tl.float32)
        own_score = tl.where(share == 0, tl.sum(query * own_key, axis=0), float("-inf"))
        top = tl.maximum(top, own_score)
    fade = tl.exp2(highest - top)
    whole = tl.sum(weight_sums * fade, axis=0)
    found = tl.sum(gathered * fade[:, None], axis=0)
    if SELF:
        own_weight = tl.exp2(own_score - top)
        whole += own_weight
        found += own_weight * own_value
    is_last = True
    if SHARES > 1:
        # Of every share one after another; programs are counted by rows and heads.
        size = tl.num_programs(0)
        there = share * size + tl.program_id(0)
        tl.store(partial + there * SIZE + units, found, mask=inside)
        tl.store(tops + there, top)
        tl.store(tops + SHARES * size + there, whole)
        tl.debug_barrier()
        count = counts + tl.program_id(0)
        is_last = tl.atomic_add(count, 1, sem="acq_rel") == SHARES - 1
        if is_last:
            tl.debug_barrier()
            shares = tl.arange(0, SHARES) * size + tl.program_id(0)
            share_tops = tl.load(tops + shares, cache_modifier=".cg")
            share_fade = tl.exp2(share_tops - tl.max(share_tops, axis=0))
            share_sums = tl.load(tops + SHARES * size + shares, cache_modifier=".cg")
            whole = tl.sum(share_fade * share_sums, axis=0)
            parts = tl.load(partial + shares[:, None] * SIZE + units[None, :],
                            mask=inside[None, :], other=0.0, cache_modifier=".cg")  # fmt: skip
            found = tl.sum(share_fade[:, None] * parts, axis=0)
            tl.store(count, 0)
    if is_last:
        found *= tl.where(whole > 0, 1.0 / tl.where(whole > 0, whole, 1.0), 0.0)
        tl.store(attended + mine + units, found.to(attended.dtype.element_ty), mask=inside)
