"""Decoders on a GPU: captured, in bfloat16, the same function as the model."""

import pytest
import torch

from examples.alternate import AlternateCached
from staircase_attention import (
    CachedStaircase,
    CoreConfig,
    FeedbackTransformer,
    Ladder,
    MemoryNetwork,
    ParallelLoop,
    SequenceModel,
    Staircase,
    TransformerXL,
)
from staircase_attention.engine.decoding import Decoder
from staircase_attention.generation import stream

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]
SCHEDULES = {
    "transformer-xl": TransformerXL(span=24),
    "ladder AABB": Ladder(num_passes=2, span=24, order="AABB"),
    "loop": ParallelLoop(num_passes=4, span=24),
    "staircase": Staircase(chunk_size=8, num_passes=3),
    "cached": CachedStaircase(chunk_size=8, num_window_chunks=4, num_passes=2),
    "feedback": FeedbackTransformer(span=24),
    "memory network": MemoryNetwork(span=24),
    "alternate": AlternateCached(chunk_size=8, num_window_chunks=5, num_passes=2),
}
each_schedule = pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)
each_batch = pytest.mark.parametrize("batch_size", [1, 3, 8, 64])
VOCAB_SIZE = 300


MODERN = {
    "norm": "rms",
    "feed_forward": "swiglu",
    "positions": "rotary",
    "num_key_value_heads": 1,
    "bias": False,
    "num_prelude_layers": 1,
    "num_coda_layers": 1,
    "injection": "gated",
}


def build(schedule, dtype, **settings):
    torch.manual_seed(0)
    core = CoreConfig(width=256, num_layers=2, num_heads=4, feed_forward_width=1024, **settings)
    model = SequenceModel(vocab_size=VOCAB_SIZE, core=core, schedule=schedule)
    return model.to("cuda", dtype).eval()


def random_tokens(*shape):
    generator = torch.Generator().manual_seed(1)
    return torch.randint(VOCAB_SIZE, shape, generator=generator).cuda()


@torch.no_grad()
def decoded(model, tokens, *, length, **options):
    """Logits of all tokens but the first few, which the model itself takes in; the last state."""
    _, state = model(tokens[:, :length])
    decoder = Decoder(model, state, **options)
    assert decoder.is_captured is options.get("capture", True)
    logits = torch.stack([decoder.step(token).clone() for token in tokens[:, length:].T], dim=1)
    return logits, decoder.state()


@each_schedule
@each_batch
@torch.no_grad()
def test_a_captured_decoder_agrees_in_bfloat16(schedule, batch_size):
    model = build(schedule, torch.bfloat16)
    tokens = random_tokens(batch_size, 70)
    found, _ = decoded(model, tokens, length=11)
    exact, _ = model.float()(tokens)
    error = (found - exact[:, 11:]).norm() / exact[:, 11:].norm()
    assert error < 4e-2


@each_schedule
@pytest.mark.parametrize(("batch_size", "positions"), [(2, "relative"), (20, "rotary")])
@torch.no_grad()
def test_a_captured_decoder_agrees_in_float32(schedule, batch_size, positions):
    model = build(schedule, torch.float32, positions=positions)
    tokens = random_tokens(batch_size, 60)
    with torch.autocast("cuda", enabled=False):
        expected, last = model(tokens)
        found, state = decoded(model, tokens, length=13)
    torch.testing.assert_close(found, expected[:, 13:], rtol=1e-3, atol=1e-3)
    for mine, its in zip(state.streams[0].tensors, last.streams[0].tensors, strict=True):
        assert mine.shape == its.shape
    more = random_tokens(batch_size, 5)
    torch.testing.assert_close(model(more, state)[0], model(more, last)[0], rtol=1e-3, atol=1e-3)


@each_schedule
@each_batch
def test_capture_and_early_kernels_change_nothing(schedule, batch_size):
    model = build(schedule, torch.bfloat16)
    tokens = random_tokens(batch_size, 60)
    plain, _ = decoded(model, tokens, length=9, capture=False, early=False)
    for early in (False, True):
        found, _ = decoded(model, tokens, length=9, early=early)
        assert torch.equal(found, plain)


@pytest.mark.parametrize("name", ["transformer-xl", "ladder AABB", "staircase", "cached"])
@pytest.mark.parametrize(
    "options", [{}, MODERN, {"injection": "normed"}], ids=["paper", "modern", "normed"]
)
@torch.no_grad()
def test_several_tokens_of_a_row_get_the_bits_that_they_get_one_by_one(name, options):
    model, tokens = build(SCHEDULES[name], torch.bfloat16, **options), random_tokens(1, 60)
    expected, _ = decoded(model, tokens, length=9)
    decoder, position = Decoder(model, model(tokens[:, :9])[1], slack=8), 9
    while position < 60:
        number = min(decoder.room, 8, 60 - position)
        found = decoder.step(tokens[:, position : position + number])
        assert torch.equal(found, expected[:, position - 9 : position - 9 + number])
        position += number


@pytest.mark.parametrize("name", ["ladder AABB", "staircase"])
@torch.no_grad()
def test_captured_drafts_leave_the_bits_of_what_follows(name):
    model, tokens = build(SCHEDULES[name], torch.bfloat16), random_tokens(1, 60)
    expected, _ = decoded(model, tokens, length=9)
    decoders = [
        Decoder(model, model(tokens[:, :9])[1], slack=4, capture=capture)
        for capture in (True, False)
    ]
    for position in range(9, 60):
        number = min(decoders[0].room, 4, 60 - position)
        drafts = []
        for decoder in decoders:
            ahead = tokens[0, position : position + number, None]
            drafts.append([decoder.step(token, 1).clone() for token in ahead])
            decoder.undo(number)
            assert torch.equal(decoder.step(tokens[:, position]), expected[:, position - 9])
        assert all(map(torch.equal, *drafts))


@pytest.mark.parametrize("name", ["transformer-xl", "ladder AABB", "loop", "staircase", "cached"])
@pytest.mark.parametrize("injection", ["gated", "normed"])
@each_batch
@torch.no_grad()
def test_decoders_of_modern_cores_agree_and_may_be_captured(name, injection, batch_size):
    options = MODERN | {"injection": injection}
    model, tokens = build(SCHEDULES[name], torch.bfloat16, **options), random_tokens(batch_size, 60)
    plain, _ = decoded(model, tokens, length=9, capture=False, early=False)
    found, _ = decoded(model, tokens, length=9)
    assert torch.equal(found, plain)
    exact, _ = model.float()(tokens)
    assert (found - exact[:, 9:]).norm() / exact[:, 9:].norm() < 4e-2


@pytest.mark.parametrize("name", ["cached", "loop"])
@each_batch
@torch.no_grad()
def test_a_captured_decoder_writes_to_no_memory_but_its_own(name, batch_size):
    # At 8 rows its scratch memory grows while launches are made.
    model = build(SCHEDULES[name], torch.bfloat16, **MODERN)
    tokens = random_tokens(batch_size, 40)
    decoder = Decoder(model, model(tokens[:, :9])[1])
    # They take every block that is free, of each size that scratch memory may have had.
    others = [
        torch.full((size,), 7.0, device="cuda") for size in range(128, 2**17, 512) for _ in range(2)
    ]
    for token in tokens[:, 9:].T:
        decoder.step(token)
    assert all((other == 7.0).all() for other in others)


def test_two_streams_of_one_model_are_the_same():
    model = build(Staircase(chunk_size=8, num_passes=3), torch.bfloat16)
    prompts = [[1, 2, 3], [4, 5, 6], [7] * 11]
    one, two = (
        [(new.row, new.token) for new in stream(model, prompts, max_tokens=40, stop_tokens=[9])]
        for _ in range(2)
    )
    assert one == two


@torch.no_grad()
def test_rows_that_began_at_different_times():
    model = build(Staircase(chunk_size=8, num_passes=3), torch.float32)
    tokens = random_tokens(3, 40)
    _, state = model(tokens[:, :16])
    state = state.reset([False, True, False])
    expected, _ = model(tokens[:, 16:], state)
    decoder = Decoder(model, state)
    found = torch.stack([decoder.step(token).clone() for token in tokens[:, 16:].T], dim=1)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)
