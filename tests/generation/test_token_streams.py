"""Streams of tokens: every row as the full forward pass has it, whatever it is batched with."""

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_streams import GREEDY, SAMPLED, all_models, alone, lstm, made, name, prompts, some_models

from building import EXACT, OUTPUT_SIZE, SCHEDULES, VOCAB_SIZE, build, models
from staircase_attention import CachedStaircase, CoreConfig, SequenceModel, Staircase
from staircase_attention.generation import SamplingConfig, stream
from staircase_attention.generation import prompts as prefilling
from staircase_attention.generation.prompts import tokens_at_once

# A test of one model makes some hundred calls, so few models of each kind have to do.
few = settings(max_examples=4)
each_kind = pytest.mark.parametrize("kind", SCHEDULES)
some_model = pytest.mark.parametrize("model", some_models(), ids=name)
each_model = pytest.mark.parametrize("model", all_models(), ids=name)


class Listener:
    """Keeps the logits of every token that a model is fed one at a time."""

    def __init__(self, model):
        self.logits = []
        self._handle = model.register_forward_hook(self._hear)

    def _hear(self, _, inputs, outputs):
        self.logits.append(outputs[0][:, -1:].clone())

    def __enter__(self):
        return self.logits

    def __exit__(self, *_):
        self._handle.remove()


@each_kind
@few
@given(data=st.data())
def test_one_token_at_a_time_gives_the_logits_of_the_full_forward_pass(kind, data):
    model, prompt = data.draw(models(kind)), data.draw(prompts)
    tokens = stream(model, prompt, max_tokens=16, sampling=GREEDY)
    with Listener(model) as heard:
        continuation = [new.token for new in tokens]
    whole, _ = model(torch.tensor([prompt + continuation[:-1]]))
    expected = whole[:, len(prompt) - 1 :]
    torch.testing.assert_close(torch.cat(heard, dim=1), expected, **EXACT)
    assert continuation == expected.argmax(-1)[0].tolist()


@each_model
def test_a_logprob_is_the_models_own_before_any_filter(model):
    tokens = list(stream(model, [1, 2], max_tokens=9, sampling=SAMPLED))
    text = [1, 2] + [new.token for new in tokens]
    whole = model(torch.tensor([text]))[0].log_softmax(-1)[0]
    expected = [whole[place, text[place + 1]].item() for place in range(1, len(text) - 1)]
    assert [new.logprob for new in tokens] == pytest.approx(expected, abs=1e-9)


@each_kind
@few
@given(data=st.data())
def test_a_row_is_the_same_in_any_batch(kind, data):
    model = data.draw(models(kind))
    batch = data.draw(st.lists(prompts, min_size=2, max_size=3))
    sampling = data.draw(st.sampled_from([SAMPLED, GREEDY, SamplingConfig(seed=5)]))
    stops = data.draw(st.sampled_from([(), (0,), (1, 2)]))
    options = {"max_tokens": 7, "sampling": sampling, "stop_tokens": stops}
    together = made(stream(model, batch, **options))
    assert together == {
        row: alone(model, prompt, row, **options) for row, prompt in enumerate(batch)
    }


def test_rows_that_can_share_a_stream_do():
    """Chunks of one token: any rows. Chunks of three: rows that end equally far into a chunk."""
    ladder, stairs = all_models()[3], build(Staircase(chunk_size=3, num_passes=2))
    batch = [[1] * length for length in (2, 5, 6, 8, 11)]
    assert len(stream(ladder, batch, max_tokens=1).state.streams) == 1
    assert len(stream(stairs, batch, max_tokens=1).state.streams) == 2


@each_model
def test_a_long_prompt_run_in_pieces_gives_the_same_tokens(model, monkeypatch):
    batch = [[1, 2, 3, 4, 5, 6, 0] * 3, [3, 4] * 5, [6]]
    expected = made(stream(model, batch, max_tokens=6, sampling=SAMPLED))
    monkeypatch.setattr(prefilling, "MAX_TOKENS_AT_ONCE", 4)
    assert made(stream(model, batch, max_tokens=6, sampling=SAMPLED)) == expected


def test_a_prompt_is_run_with_bounded_memory_in_whole_chunks():
    model = build(CachedStaircase(chunk_size=48, num_window_chunks=2, num_passes=1))
    assert tokens_at_once(model, num_rows=1) == 1008
    large = SequenceModel(
        vocab_size=50_000,
        core=CoreConfig(width=8, num_layers=1, num_heads=1),
        schedule=Staircase(chunk_size=48, num_passes=2),
    )
    assert tokens_at_once(large, num_rows=8) == 48
    assert tokens_at_once(large, num_rows=64) == 10
    assert tokens_at_once(large, num_rows=10_000) == 1


@some_model
def test_tokens_appear_as_they_are_made(model):
    """A stream without end gives its first tokens at once, row by row, round by round."""
    tokens = stream(model, [[1], [2, 3]], max_tokens=None)
    first = [next(tokens) for _ in range(5)]
    assert [new.row for new in first] == [0, 1, 0, 1, 0]
    assert [new.row for new in tokens.next_round()] == [1]
    assert [new.row for new in tokens.next_round()] == [0, 1]
    assert all(new.finish is None for new in first)


@each_model
def test_rows_end_by_stop_tokens_and_by_length_each_at_its_own_time(model):
    free = made(stream(model, [[1], [2, 3], [4]], max_tokens=16))
    tokens = list(stream(model, [[1], [2, 3], [4]], max_tokens=16, stop_tokens=[2]))
    last = {new.row: new for new in tokens}
    for row, found in made(tokens).items():
        ends = free[row].index(2) + 1 if 2 in free[row] else 16
        assert found == free[row][:ends]
        assert last[row].finish == ("stop_token" if ends < 16 or found[-1] == 2 else "max_tokens")
    assert sum(new.finish is not None for new in tokens) == 3


def test_a_row_can_be_ended_from_outside():
    model = build(Staircase(chunk_size=3, num_passes=2))
    expected = made(stream(model, [[1], [2, 3]], max_tokens=6))
    tokens = stream(model, [[1], [2, 3]], max_tokens=6)
    first = tokens.next_round()
    tokens.finished[0] = "stop_string"
    assert made(tokens) == {1: expected[1][1:]}
    assert [new.token for new in first] == [expected[0][0], expected[1][0]]


def test_the_penalty_applies_to_the_latest_tokens_only():
    sampling = SamplingConfig(repetition_penalty=2.0, repetition_window=3)
    tokens = stream(lstm(), [[5, 6, 1, 2], [3]], max_tokens=4, sampling=sampling)
    assert tokens.recent == [[6, 1, 2], [3]]
    history = [[6, 1, 2], [3]]
    for new in tokens:
        history[new.row].append(new.token)
    assert tokens.recent == [row[-3:] for row in history]


@some_model
def test_seeds_and_row_numbers_change_what_is_drawn_and_nothing_else_does(model):
    def draw(seed=0, **options):
        sampling = SamplingConfig(temperature=3.0, seed=seed)
        rows = made(stream(model, [1, 2, 3], max_tokens=24, sampling=sampling, **options))
        return next(iter(rows.values()))

    torch.manual_seed(0)
    first = draw()
    torch.manual_seed(1)
    assert draw() == first
    assert draw(seed=1) != first
    assert draw(row_numbers=[1]) != first


@pytest.mark.parametrize(
    "prompt",
    [
        (3, 1, 4),
        torch.tensor([3, 1, 4]),
        [(3, 1, 4)],
        torch.tensor([[3, 1, 4]]),
        [numpy.int64(3), 1, numpy.int8(4)],
        *(numpy.array([3, 1, 4], dtype) for dtype in ("i4", "i8", "u1", "u2")),
    ],
)
def test_a_prompt_may_be_a_list_a_tensor_or_an_array_of_any_integers(prompt):
    expected = made(stream(lstm(), [[3, 1, 4]], max_tokens=5))
    assert made(stream(lstm(), prompt, max_tokens=5)) == expected
    assert made(stream(lstm(), [[3, 1, 4], torch.tensor([0])], max_tokens=5))[0] == expected[0]


def test_waiting_tokens_are_taken_first_and_not_counted_and_taking_ends_with_the_stream():
    tokens = stream(lstm(), [[1], [2]], max_tokens=4)
    next(tokens)
    assert [new.row for new in tokens.take(2)] == [1, 0, 1, 0, 1]
    assert tokens.num_made == 3
    assert [new.finish for new in tokens.take(9)] == ["max_tokens", "max_tokens"]
    assert list(tokens.take(9)) == []
    for number in (0, 1.5, True):
        with pytest.raises(ValueError, match=f"max_tokens must be .* at least 1, got {number}; u"):
            next(tokens.take(number))


def test_a_start_token_goes_before_every_prompt():
    model = build(Staircase(chunk_size=3, num_passes=2))
    expected = made(stream(model, [[6], [6, 1]], max_tokens=5))
    assert made(stream(model, [[], [1]], max_tokens=5, start_token=6)) == expected
    assert made(stream(model, [], max_tokens=5, start_token=6)) == {0: expected[0]}


@some_model
def test_a_model_in_training_streams_without_dropout_and_stays_in_training(model):
    expected = made(stream(model, [1, 2], max_tokens=5))
    model.train()
    try:
        assert made(stream(model, [1, 2], max_tokens=5)) == expected
        assert model.training
    finally:
        model.eval()


def test_the_state_of_a_stream_serves_training_too():
    model = build(Staircase(chunk_size=3, num_passes=2))
    tokens = stream(model, [1, 2, 3, 4], max_tokens=4)
    latest = list(tokens)[-1]
    logits, _ = model(torch.tensor([[latest.token]]), tokens.state)
    logits.sum().backward()
    assert tokens.state.lengths == (7,)


@each_model
def test_what_a_stream_holds_stays_the_same_however_long_it_gets(model):
    """Save in the Global Cached model, whose state is all that it has read.

    `benchmarks/stream_flatness.py` goes on for 50,000 tokens, and takes the time.
    """
    is_lstm = name(model) == "lstm"
    period = 1 if is_lstm else model.schedule.chunk_length
    sizes = []
    for length in (1, 61):
        tokens = stream(model, [1] * length, max_tokens=None, sampling=SAMPLED)
        for count in range(1, 31):
            tokens.next_round()
            if count > 18 and count % period == 0:
                sizes.append(held(tokens))
    assert (len(set(sizes)) == 1) == (is_lstm or model.schedule.is_state_bounded)


def held(tokens) -> tuple[int, int]:
    """Tensors, and bytes of them, that a stream keeps alive."""
    state = tokens.stepper.state
    kept = (
        [tensor for part in state.streams for tensor in part.tensors]
        if hasattr(state, "streams")
        else [state.hidden, state.cell]
    )
    storages = {one.untyped_storage().data_ptr(): one.untyped_storage().nbytes() for one in kept}
    assert len(tokens.waiting) == 0
    assert len(tokens.recent[0]) <= SAMPLED.repetition_window
    return len(kept), sum(storages.values())


@pytest.mark.parametrize(
    ("prompt", "options", "message"),
    [
        ([], {}, "at least one token, got none in prompt 0"),
        ([[1], []], {}, "got none in prompt 1"),
        (torch.zeros(0, 3, dtype=torch.int64), {}, "at least one prompt, got none"),
        ("abc", {}, "token ids, got 'abc'; pass .*"),
        ([1.5], {}, "token ids, got \\[1.5\\]"),
        ([["a"]], {}, "token ids, got \\['a'\\]"),
        ([[[1]]], {}, "token ids, got \\[\\[1\\]\\]"),
        (3, {}, "token ids, got 3"),
        ({"a": 1}, {}, "token ids, got {'a': 1}"),
        ([VOCAB_SIZE], {}, f"from 0 to vocab_size - 1 = {VOCAB_SIZE - 1}, got ids from 7"),
        ([1], {"start_token": -1}, "start_token must be an integer from 0 to 6, got -1"),
        ([1], {"start_token": 7}, "start_token must be an integer from 0 to 6, got 7"),
        ([1], {"start_token": 3.5}, "start_token must be an integer from 0 to 6, got 3.5"),
        ([1], {"max_tokens": 0}, "max_tokens must be an integer of at least 1, got 0"),
        ([1], {"max_tokens": 1.5}, "got 1.5"),
        ([1], {"sampling": 0.5}, "must be a SamplingConfig, got 0.5"),
        ([1], {"stop_tokens": ["a"]}, "stop_token must be an integer from 0 to 4, got 'a'"),
        ([1], {"stop_tokens": [OUTPUT_SIZE]}, "from 0 to 4, got 5"),
        ([1], {"row_numbers": [0, 1]}, "for each of the 1 prompts, got \\[0, 1\\]"),
        ([[1], [2]], {"row_numbers": [1, 1]}, "one different number .* got \\[1, 1\\]"),
        ([1], {"row_numbers": [-1]}, "row_number must be an integer of at least 0, got -1"),
    ],
)
def test_mistakes_are_refused_in_one_line(prompt, options, message):
    with pytest.raises(ValueError, match=f"^.*{message}.*; .*$"):
        stream(lstm(), prompt, **{"max_tokens": 3, **options})


def test_a_model_that_cannot_read_what_it_writes_is_refused():
    model = SequenceModel(
        vocab_size=3,
        output_size=OUTPUT_SIZE,
        core=CoreConfig(width=8, num_layers=1, num_heads=1),
        schedule=Staircase(chunk_size=2, num_passes=2),
    )
    with pytest.raises(ValueError, match="output_size must be at most vocab_size, got 5 and 3"):
        stream(model, [1], max_tokens=1)


def test_a_round_that_fails_leaves_the_stream_as_it_was():
    model = lstm()
    expected = made(stream(model, [[1], [2, 3]], max_tokens=4))
    tokens = stream(model, [[1], [2, 3]], max_tokens=4)
    weight = model.output.weight.detach().clone()
    with torch.no_grad():
        model.output.weight[0] = torch.nan
        with pytest.raises(ValueError, match="got NaN or infinity in row 0"):
            next(tokens)
        model.output.weight.copy_(weight)
    assert made(tokens) == expected
