"""The decoding kernels by themselves: attention to segments, norms of rows, tiles."""

import pytest
import torch

from staircase_attention.attention import View
from staircase_attention.attention.reference import attend
from staircase_attention.engine.decoding.plan import DecodingPlan, FormStep, Layout, Segment, Sizes

pytest.importorskip("triton")
import triton

from staircase_attention.engine.decoding.launches import attention_tiles
from staircase_attention.engine.kernels.decoding import LAYER_NORM, RMS_NORM, norm_rows
from staircase_attention.engine.kernels.decoding_attention import attend_segments

HEADS, SIZE, DISTANCES = 2, 6, 9
CAPACITY, SLOTS = 24, 30
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
NOW = 100
# Keys and values of some positions, and where they lie: in the cache, and in a bank that wraps.
CACHED = [Segment(40, 20, 5), Segment(50, 3, 4)]
HELD = range(89, NOW)


def put(memory, held, vectors):
    """Write vectors [heads, tokens, size] to memory [rows, heads, places, size], in order."""
    for segment in held:
        part, vectors = vectors.split([segment.length, vectors.shape[1] - segment.length], dim=1)
        memory[:, :, segment.place : segment.place + segment.length] = part


@pytest.mark.parametrize("num_frozen", [0, 1, 2])
@pytest.mark.parametrize("start", [42, 95])
@pytest.mark.parametrize("shares", [1, 4])
def test_attention_to_segments_is_the_reference(num_frozen, start, shares):
    plan = DecodingPlan(
        run=range(NOW, NOW + 1),
        place=0,
        before=Layout({}, {}, []),
        after=Layout({}, {}, []),
        form=(FormStep(range(1), None),),
        seen=((1, HELD, CACHED[:num_frozen]),),
        attends_self=True,
        span=None,
    )
    sizes = Sizes(capacity=CAPACITY, num_slots=SLOTS, num_frozen=2)
    (row,) = plan.rows(sizes, 1)
    positions = [range(one.position, one.position + one.length) for one in CACHED[:num_frozen]]
    view = View.of(
        queries=range(NOW, NOW + 1),
        keys=[*positions, range(HELD.start, NOW + 1)],
        span=None,
        starts=(start,),
        device=torch.device("cpu"),
    )
    generator = torch.Generator().manual_seed(num_frozen)
    keys, values = torch.randn(2, 1, HEADS, view.num_keys, SIZE, generator=generator)
    queries = torch.randn(1, HEADS, 1, SIZE, generator=generator)
    table = torch.randn(DISTANCES, SIZE, generator=generator)
    exact = [tensor.double() for tensor in (queries, keys, values)]
    expected = attend(*exact, table=table.double(), view=view, dropout=0.0)
    in_bank = [Segment(89, 89 % CAPACITY, 7), Segment(96, 0, 5)]
    flat = []
    for vectors in (keys[0], values[0]):
        banks = torch.full((2, 1, HEADS, CAPACITY, SIZE), torch.nan)
        cache = torch.full((1, HEADS, SLOTS, SIZE), torch.nan)
        num_cached = sum(map(len, positions))
        put(cache, CACHED[:num_frozen], vectors[:, :num_cached])
        put(banks[1], in_bank, vectors[:, num_cached:])
        flat.append(torch.cat([banks.flatten(), cache.flatten()]).to(DEVICE))
    found, partial, tops = (
        torch.full((2 * shares, HEADS * SIZE), torch.nan, device=DEVICE) for _ in range(3)
    )
    counts = torch.zeros(HEADS, dtype=torch.int32, device=DEVICE)
    attend_segments[(HEADS, shares)](
        queries.to(DEVICE),
        *flat,
        table.to(DEVICE),
        torch.tensor([start], device=DEVICE),
        torch.tensor([NOW], device=DEVICE),
        torch.tensor(row, device=DEVICE),
        found,
        partial,
        tops,
        counts,
        0,
        2 * HEADS * CAPACITY,
        SIZE**-0.5,
        HEADS=HEADS,
        GROUPS=HEADS,
        SIZE=SIZE,
        UNITS=8,
        CAPACITY=CAPACITY,
        SLOTS=SLOTS,
        SEGMENTS=4,
        FROZEN=2,
        TOKENS=1,
        SPAN=0,
        DISTANCES=DISTANCES,
        ROTARY=False,
        SHARES=shares,
        BLOCK=16,
        EARLY=False,
    )
    torch.testing.assert_close(found[0].cpu().double(), expected.flatten(), rtol=1e-5, atol=1e-6)
    assert not counts.any()


@pytest.mark.parametrize("width", [5, 16, 22])
@pytest.mark.parametrize("num_norms", [1, 3])
@pytest.mark.parametrize("centres", [True, False])
def test_norms_of_rows_are_those_of_pytorch(width, num_norms, centres):
    """Also of rows that are far from zero, where plain sums of squares would cancel."""
    generator = torch.Generator().manual_seed(width)
    rows = torch.randn(4, width, generator=generator) + torch.tensor([0.0, 1.0, 30.0, 1e3])[:, None]
    gains, shifts = torch.randn(2, num_norms, width, generator=generator)
    found = torch.full((num_norms, 4, width), torch.nan, device=DEVICE)
    norm_rows[(4, num_norms)](
        rows.to(DEVICE),
        torch.stack([gains, shifts], dim=1).to(DEVICE),
        found,
        4,
        1e-5,
        WIDTH=width,
        READ=(LAYER_NORM if centres else RMS_NORM).value,
        BLOCK=triton.next_power_of_2(width),
        EARLY=False,
    )
    norm = torch.nn.functional.layer_norm if centres else torch.nn.functional.rms_norm
    normed = norm(rows.double(), (width,), eps=1e-5)
    expected = normed * gains.double()[:, None] + shifts.double()[:, None]
    errors = (found.cpu().double() - expected).abs().amax(dim=(0, 2))
    assert (errors < torch.tensor([1e-6, 1e-6, 2e-5, 5e-4])).all(), errors


def test_shares_fill_a_large_gpu_and_no_more():
    def chosen(rows, *, keys=256, dtype=torch.bfloat16, is_rotary=False):
        tiles = attention_tiles(rows, 8, keys, 128, dtype, is_rotary=is_rotary)
        return tiles.shares, tiles.block, tiles.num_warps

    assert chosen(1) == (8, 32, 4)
    assert chosen(8) == (2, 64, 8)
    assert chosen(64) == (1, 32, 4)
    assert chosen(1, keys=40) == (2, 32, 4)
    assert chosen(1, keys=1) == (1, 16, 2)
    assert chosen(8, dtype=torch.float32) == (2, 32, 4)
    assert chosen(64, is_rotary=True) == (1, 16, 2)
