"""A decoder gives what its model gives, token by token, from any state and back to one."""

from dataclasses import dataclass, replace

import pytest
import torch

from building import random_tokens
from examples.alternate import AlternateCached
from staircase_attention import (
    CachedStaircase,
    CoreConfig,
    FeedbackTransformer,
    GlobalCachedStaircase,
    Ladder,
    MemoryNetwork,
    ParallelLoop,
    SequenceModel,
    Staircase,
    TransformerXL,
    UniversalTransformer,
)
from staircase_attention.engine.decoding import Decoder, decoder, launches
from staircase_attention.engine.decoding.plan import Sizes
from staircase_attention.inspect import inspect
from staircase_attention.schedules import joined, pieces

pytest.importorskip("triton")
CLOSE = {"rtol": 1e-4, "atol": 1e-5}
VOCAB_SIZE = 7


@dataclass(frozen=True, kw_only=True)
class Sinks(CachedStaircase):
    """The first chunk stays visible for ever; of others every third is cached, later all."""

    def is_cached(self, chunk):
        return chunk % 3 == 0 or chunk > 8

    def steps(self, tokens, *, num_layers, order):
        first = range(self.chunk_size)

        def cached(ranges):
            chunks = [one for part in ranges for one in pieces(part, self.chunk_size)]
            parts = [part for chunk, part in chunks if self.is_cached(chunk)]
            is_gone = ranges and ranges[0].start >= self.chunk_size
            return joined([first, *parts] if is_gone else parts)

        for step in super().steps(tokens, num_layers=num_layers, order=order):
            cells = tuple(
                cell if self.is_cached(cell.chunk) else replace(cell, cached=None)
                for cell in step.cells
            )
            yield replace(step, cells=cells, frozen=cached(step.frozen), kept=cached(step.kept))


class LaggedLayers(ParallelLoop):
    """Each layer in turn: not all of its passes can be taken at once."""

    order = "AABB"


def build(schedule, *, num_layers=1, heads=2, **settings):
    torch.manual_seed(0)
    core = CoreConfig(
        width=16 * heads,
        num_layers=num_layers,
        num_heads=heads,
        feed_forward_width=24,
        **settings,
    )
    model = SequenceModel(vocab_size=VOCAB_SIZE, output_size=5, core=core, schedule=schedule)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, 0.3)
    return model.eval()


def prompted(model, tokens, length):
    if length == 0:
        return model.initial_state(len(tokens))
    return model(tokens[:, :length])[1]


def assert_same(found, expected):
    assert found.model == expected.model
    assert found.chunk_length == expected.chunk_length
    (one,), (two,) = found.streams, expected.streams
    assert (one.rows, one.position, one.starts) == (two.rows, two.position, two.starts)
    assert one.cached == two.cached
    assert set(one.banks) == set(two.banks)
    for key, held in one.banks.items():
        for mine, its in zip(held, two.banks[key], strict=True):
            torch.testing.assert_close(mine, its, **CLOSE)
    for held, other in zip(one.cache, two.cache, strict=True):
        for mine, its in zip(held, other, strict=True):
            torch.testing.assert_close(mine, its, **CLOSE)


def forget(decoder):
    """Fill all scratch memory with what would be noticed."""
    for tensor in vars(decoder._launches(1)).values():
        if isinstance(tensor, torch.Tensor) and tensor.is_floating_point():
            tensor.fill_(torch.nan)


@torch.no_grad()
def follow(model, state, tokens):
    """Step a decoder and the model side by side; both logits and both states must agree."""
    assert Decoder.fits(model, state)
    decoder = Decoder(model, state)
    forget(decoder)
    assert_same(decoder.state(), state)
    for token in tokens.T:
        expected, state = model(token[:, None], state)
        torch.testing.assert_close(decoder.step(token), expected[:, 0], **CLOSE)
    assert_same(decoder.state(), state)
    more = random_tokens(len(tokens), 3, seed=5)
    torch.testing.assert_close(model(more, decoder.state())[0], model(more, state)[0], **CLOSE)


MODERN = {
    "norm": "rms",
    "feed_forward": "swiglu",
    "positions": "rotary",
    "num_key_value_heads": 1,
    "bias": False,
}
OUTER = {"num_prelude_layers": 1, "num_coda_layers": 2}
CASES = {
    "modern ladder": (Ladder(num_passes=2, span=3), MODERN | OUTER | {"injection": "add"}),
    "modern staircase": (
        Staircase(chunk_size=2, num_passes=2),
        MODERN | OUTER | {"heads": 4, "num_key_value_heads": 2, "injection": "gated"},
    ),
    "modern cached": (
        CachedStaircase(chunk_size=2, num_window_chunks=3, num_passes=2),
        OUTER | {"injection": "normed", "feed_forward": "gelu", "num_key_value_heads": 1},
    ),
    "modern feedback": (
        FeedbackTransformer(span=3),
        MODERN | {"positions": "relative", "num_layers": 2},
    ),
    "transformer-xl": (TransformerXL(span=3), {"num_layers": 2}),
    "transformer-xl, a span of one": (TransformerXL(span=1), {}),
    "transformer-xl, rotary": (TransformerXL(span=3), {"positions": "rotary"}),
    "transformer-xl, three heads": (TransformerXL(span=66), {"heads": 3}),
    "ladder ABAB": (Ladder(num_passes=2, span=3), {"num_layers": 2}),
    "ladder AABB": (Ladder(num_passes=2, span=3, order="AABB"), {"num_layers": 2}),
    "loop": (ParallelLoop(num_passes=3, span=3), {"num_layers": 2}),
    "loop, a span of one": (
        ParallelLoop(num_passes=2, span=1),
        OUTER | {"injection": "normed", "norm": "rms"},
    ),
    "loop, a prelude": (ParallelLoop(num_passes=3, span=3), OUTER),
    "loop, one pass": (ParallelLoop(num_passes=1, span=3), {}),
    "modern loop": (
        ParallelLoop(num_passes=3, span=4),
        MODERN | OUTER | {"injection": "gated"},
    ),
    "universal": (UniversalTransformer(num_passes=2, span=4), {"max_distance": 2}),
    "staircase": (Staircase(chunk_size=2, num_passes=3), {}),
    "staircase, two layers": (Staircase(chunk_size=2, num_passes=2), {"num_layers": 2}),
    "staircase, rotary": (Staircase(chunk_size=2, num_passes=2), {"positions": "rotary"}),
    "cached": (
        CachedStaircase(chunk_size=2, num_window_chunks=3, num_passes=1),
        {"num_layers": 2},
    ),
    "cached, M = 2": (CachedStaircase(chunk_size=2, num_window_chunks=3, num_passes=2), {}),
    "cached, M = 0": (
        CachedStaircase(chunk_size=2, num_window_chunks=2, num_passes=0),
        {"positions": "rotary"},
    ),
    "feedback": (FeedbackTransformer(span=3), {"num_layers": 2}),
    "feedback, with itself": (FeedbackTransformer(span=3, attend_self=True), {}),
    "feedback, of its own": (
        FeedbackTransformer(span=3, memory="top", share_keys_values=False),
        {"num_layers": 2},
    ),
    "memory network": (MemoryNetwork(span=3), {"num_layers": 2}),
    "alternate": (
        AlternateCached(chunk_size=2, num_window_chunks=5, num_passes=2),
        {"num_layers": 2, "max_distance": 12},
    ),
    "alternate, M = 0": (
        AlternateCached(chunk_size=2, num_window_chunks=3, num_passes=0),
        {"positions": "rotary"},
    ),
    "sinks": (Sinks(chunk_size=2, num_window_chunks=3, num_passes=1), {"max_distance": 40}),
}


@pytest.mark.parametrize("name", ["modern staircase", "modern cached"])
@torch.no_grad()
def test_several_tokens_at_once_are_those_tokens_one_by_one_and_can_be_taken_back(name):
    schedule, settings = CASES[name]
    model, batch = build(schedule, **settings), random_tokens(2, 24)
    state = model(batch[:, :5])[1]
    decoder, position = Decoder(model, state, slack=4), 5
    single = Decoder(model, state)
    while position < 13:
        number = min(decoder.room, 1 + position % 4)
        wrong = (batch[:, position : position + number] + 1) % VOCAB_SIZE
        wrong[:, 0] = batch[:, position]
        decoder.step(wrong)
        # The first token stays; the others are taken back and come right.
        decoder.undo(number - 1)
        single.step(batch[:, position])
        position += 1
        number = min(decoder.room, 3)
        tokens = batch[:, position : position + number]
        state = model(batch[:, :position])[1]
        expected, state = model(tokens, state)
        found = decoder.step(tokens)
        torch.testing.assert_close(found, expected, **CLOSE)
        # Bit for bit: the same sums in the same order.
        alone = torch.stack([single.step(token).clone() for token in tokens.T], dim=1)
        assert torch.equal(found, alone)
        position += number
        assert_same(decoder.state(), state)


@pytest.mark.parametrize("name", ["modern staircase", "cached, M = 2"])
@torch.no_grad()
def test_drafts_stop_after_some_passes_and_leave_no_trace(name):
    schedule, settings = CASES[name]
    model, batch = build(schedule, **settings), random_tokens(2, 9)
    decoder = Decoder(model, model(batch[:, :4])[1], slack=4)
    for position in (4, 5):
        number, state = min(decoder.room, 3), decoder.state()
        tokens = batch[:, position : position + number]
        seen = inspect(model, tokens, state)
        for passes in range(1, seen.num_passes + 1):
            found = [decoder.step(token, passes).clone() for token in tokens.T]
            expected = seen.logits_after(passes)
            torch.testing.assert_close(torch.stack(found, dim=1), expected, **CLOSE)
            decoder.undo(number)
            assert_same(decoder.state(), state)
        decoder.step(batch[:, position])


each_case = pytest.mark.parametrize(("schedule", "options"), CASES.values(), ids=CASES)


@each_case
def test_a_decoder_follows_its_model_from_the_first_token_on(schedule, options):
    model = build(schedule, **options)
    num_steps = 2 * schedule.chunk_length + 1
    follow(model, model.initial_state(1), random_tokens(1, num_steps))


@each_case
@torch.no_grad()
def test_a_decoder_continues_from_any_state(schedule, options):
    model = build(schedule, **options)
    length = 3 * schedule.chunk_length + 1
    tokens = random_tokens(2, length + 2)
    follow(model, prompted(model, tokens, length), tokens[:, length:])


@torch.no_grad()
def test_a_decoder_makes_room_for_what_a_timetable_needs_later(monkeypatch):
    monkeypatch.setattr(decoder, "measured", lambda *_: Sizes())
    schedule, options = CASES["sinks"]
    model = build(schedule, **options)
    follow(model, model.initial_state(1), random_tokens(1, 24))


@pytest.mark.parametrize(
    "name", ["transformer-xl, three heads", "cached, M = 2", "feedback", "loop"]
)
@torch.no_grad()
def test_programs_that_share_the_keys_of_a_head(name, monkeypatch):
    monkeypatch.setattr(launches, "MOST_SHARES", 4)
    monkeypatch.setattr(launches, "FEWEST_KEYS", 1)
    schedule, options = CASES[name]
    model = build(schedule, **options)
    tokens = random_tokens(2, 70)
    for length in (0, 2, 67):
        follow(model, prompted(model, tokens, length), tokens[:, length : length + 1])


@pytest.mark.parametrize(
    "name",
    [
        "cached",
        "feedback",
        "feedback, of its own",
        "memory network",
        "modern ladder",
        "modern cached",
        "modern loop",
    ],
)
@torch.no_grad()
def test_products_of_many_rows(name):
    """The last tile of columns is not whole, nor is the only one of rows."""
    schedule, options = CASES[name]
    model = build(schedule, **{**options, "heads": 3})
    tokens = random_tokens(5, 4)
    follow(model, prompted(model, tokens, 3), tokens[:, 3:])


@pytest.mark.parametrize("name", ["cached", "feedback"])
@torch.no_grad()
def test_products_in_parts(name, monkeypatch):
    chosen = launches.Tiles(rows=16, columns=16, inner=16, parts=2, num_stages=1)
    monkeypatch.setattr(launches, "many_tiles", lambda *_: chosen)
    schedule, options = CASES[name]
    model = build(schedule, **options)
    tokens = random_tokens(18, 4)
    follow(model, prompted(model, tokens, 3), tokens[:, 3:])


@torch.no_grad()
def test_large_products_of_a_few_rows_read_their_weights_once(monkeypatch):
    monkeypatch.setattr(launches, "MOST_READ_AGAIN", 0)
    schedule, options = CASES["loop"]
    model = build(schedule, **options)
    tokens = random_tokens(1, 5)
    follow(model, prompted(model, tokens, 3), tokens[:, 3:])


@pytest.mark.parametrize(
    ("name", "batch_size"),
    [
        *[("transformer-xl", 3), ("staircase", 3), ("cached", 5), ("feedback", 5)],
        *[("modern cached", 2), ("loop", 3)],
    ],
)
@torch.no_grad()
def test_rows_that_began_at_different_times(name, batch_size):
    schedule, options = CASES[name]
    model = build(schedule, **options)
    length = 4 * schedule.chunk_length
    tokens = random_tokens(batch_size, length + 2)
    state = prompted(model, tokens, length)
    state = state.reset([row == 1 for row in range(batch_size)])
    assert len(state.streams) == 1
    follow(model, state, tokens[:, length:])


@pytest.mark.parametrize(("name", "batch_size"), [("cached", 1), ("cached", 5), ("loop", 1)])
@torch.no_grad()
def test_products_in_half_precision(name, batch_size):
    # Not in bfloat16: Triton's interpreter takes its bits for whole numbers in `tl.dot`.
    schedule, options = CASES[name]
    model = build(schedule, **options).half()
    tokens = random_tokens(batch_size, 7)
    _, state = model(tokens[:, :4])
    decoder = Decoder(model, state)
    found = torch.stack([decoder.step(token).clone() for token in tokens[:, 4:].T], dim=1)
    assert decoder.state().dtypes == {torch.float16}
    expected, _ = model.float()(tokens)
    torch.testing.assert_close(found, expected[:, 4:], rtol=1e-2, atol=1e-2)


@torch.no_grad()
def test_the_latest_step_can_be_taken_back():
    model = build(Staircase(chunk_size=2, num_passes=2))
    tokens = random_tokens(1, 7)
    for length in (3, 4):
        state = prompted(model, tokens, length)
        decoder = Decoder(model, state)
        decoder.step(tokens[:, 5])
        decoder.undo()
        assert_same(decoder.state(), state)
        expected, state = model(tokens[:, length : length + 1], state)
        found = decoder.step(tokens[:, length])
        torch.testing.assert_close(found, expected[:, 0], **CLOSE)


@pytest.mark.parametrize("name", ["loop", "loop, a span of one"])
@torch.no_grad()
def test_lagged_passes_begin_again_with_what_was_left_before_tokens_were_taken_back(name):
    schedule, options = CASES[name]
    model, tokens = build(schedule, **options), random_tokens(2, 11)
    whole = model(tokens)[0]
    decoder, position = Decoder(model, model(tokens[:, :2])[1], slack=2), 2
    assert decoder.room == 1
    while position < 8:
        number = 1 + position % 3
        for token in tokens[:, position + 1 : position + 1 + number].T:
            decoder.step(token)
        decoder.undo(number)
        assert_same(decoder.state(), model(tokens[:, :position])[1])
        for _ in range(2):
            found = decoder.step(tokens[:, position])
            torch.testing.assert_close(found, whole[:, position], **CLOSE)
            position += 1


def test_all_passes_of_a_parallel_loop_take_as_many_kernels_as_one():
    def number(schedule):
        model = build(schedule, num_layers=2)
        return Decoder(model, model.initial_state(1)).num_kernels

    assert number(ParallelLoop(num_passes=4, span=3)) == number(TransformerXL(span=3))


@torch.no_grad()
def test_a_state_of_a_decoder_is_a_copy_fit_for_gradients():
    model = build(TransformerXL(span=3))
    with torch.inference_mode():
        decoder = Decoder(model, model.initial_state(1))
        decoder.step(torch.tensor([1]))
        state = decoder.state()
        decoder.step(torch.tensor([2]))
    assert state.lengths == (1,)
    assert not any(tensor.is_inference() for tensor in state.streams[0].tensors)


def test_what_does_not_fit_is_refused():
    model = build(Staircase(chunk_size=2, num_passes=2))
    state = model.initial_state(2)
    assert Decoder.fits(model, state)
    unbounded = build(GlobalCachedStaircase(chunk_size=2, num_passes=1))
    assert not Decoder.fits(unbounded, unbounded.initial_state(1))
    assert not Decoder.fits(model, unbounded.initial_state(1))
    for schedule, settings in (
        (TransformerXL(span=3), {"qk_norm": True}),
        (FeedbackTransformer(span=3), {"num_coda_layers": 1}),
        (FeedbackTransformer(span=3, attend_self=True), {"injection": "add"}),
        (LaggedLayers(num_passes=2, span=3), {"num_layers": 2}),
    ):
        other = build(schedule, **settings)
        assert not Decoder.fits(other, other.initial_state(1))
    assert not Decoder.fits(model.double(), state)
    model.float()
    _, begun = model(random_tokens(2, 3))
    parted = begun.reset([True, False])
    assert len(parted.streams) == 2
    assert not Decoder.fits(model, parted)
    with pytest.raises(ValueError, match=r"Decoder\.fits.* is False"):
        Decoder(model, parted)
    with pytest.raises(ValueError, match="one token for each"):
        Decoder(model, state).step(torch.tensor([1]))


def test_weights_can_serve_another_decoder_until_the_model_changes():
    model = build(TransformerXL(span=3))
    first = Decoder(model, model.initial_state(1))
    assert Decoder(model, model.initial_state(2), weights=first.weights).weights is first.weights
    with torch.no_grad():
        model.output.bias.add_(1.0)
    assert not first.weights.are_current
    again = Decoder(model, model.initial_state(1), weights=first.weights)
    assert again.weights is not first.weights
