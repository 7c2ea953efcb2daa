"""Drafts in few passes change neither greedy tokens nor the distribution of sampled ones."""

from collections import Counter
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_streams import GREEDY, SAMPLED, lstm, made

from building import EXACT, SCHEDULES, build, small
from staircase_attention import CoreConfig, Ladder, Staircase
from staircase_attention.generation import (
    SamplingConfig,
    load_stream,
    save_stream,
    stream,
)
from staircase_attention.generation.stepper import Stepper
from staircase_attention.inspect import inspect
from staircase_attention.models import take_apart

CORE = CoreConfig(width=8, num_layers=2, num_heads=2, max_distance=40)
PROMPTS = [[1, 2, 3, 4, 0, 2], [3, 3], [0]]
KINDS = ("staircase", "cached-staircase", "global-cached-staircase", "ladder", "parallel-loop")


@st.composite
def models(draw):
    schedule = draw(st.sampled_from(KINDS).flatmap(SCHEDULES.__getitem__))
    return build(schedule, CORE, seed=draw(small(0, 99)))


def assert_same_state(one, other):
    (mine, tensors), (theirs, others) = (take_apart(state) for state in (one, other))
    assert mine == theirs
    for name, tensor in tensors.items():
        torch.testing.assert_close(tensor, others[name], **EXACT)


@settings(max_examples=8)
@given(model=models(), passes=small(1, 2), number=small(1, 6), rows=small(1, 3))
def test_greedy_tokens_and_the_state_after_them_are_those_of_plain_decoding(
    model, passes, number, rows
):
    greedy = SamplingConfig(temperature=0.0, repetition_penalty=1.3, repetition_window=3)
    plain, drafted = (
        stream(model, PROMPTS[:rows], max_tokens=None, sampling=greedy) for _ in range(2)
    )
    drafted.speculate(passes, number)
    for _ in range(2):
        assert made(drafted.take(5)) == made(plain.take(5))
        assert_same_state(drafted.state, plain.state)


@settings(max_examples=8)
@given(model=models(), passes=small(1, 2), number=small(1, 6), taken=small(1, 9), stop=small(0, 4))
def test_a_stream_that_was_taken_from_goes_on_to_its_end(model, passes, number, taken, stop):
    options = {"max_tokens": 20, "sampling": GREEDY, "stop_tokens": [stop]}
    plain, drafted = (stream(model, PROMPTS, **options) for _ in range(2))
    drafted.speculate(passes, number)
    assert made(drafted.take(taken)) == made(plain.take(taken))
    # In other shares of rounds than those of `take`.
    assert made(drafted) == made(plain)
    assert drafted.finished == plain.finished


@settings(max_examples=8)
@given(model=models(), passes=small(1, 3), length=small(1, 9))
def test_drafts_say_what_the_model_says_after_so_many_passes(model, passes, length):
    tokens = torch.randint(5, (2, 4))
    state = model(torch.randint(5, (2, length)))[1]
    drafts = Stepper(model, state, slack=4, draft_passes=passes)
    number = min(drafts.room or 4, 4)
    seen = inspect(model, tokens[:, :number], state)
    expected = seen.logits_after(min(passes, seen.num_passes))
    with torch.no_grad():
        found = [drafts.ahead(token[:, None], drafts=True) for token in tokens.T[:number]]
    torch.testing.assert_close(torch.cat(found, 1), expected, **EXACT)
    drafts.settle(0)
    assert_same_state(drafts.state, state)


@pytest.mark.parametrize("kind", [*KINDS, "single tokens"])
@settings(max_examples=3)
@given(data=st.data(), number=small(1, 6), stop=small(0, 4))
def test_sampled_rows_depend_neither_on_their_batch_nor_on_the_number_of_drafts(
    kind, data, number, stop
):
    schedule = data.draw(SCHEDULES.get(kind, st.just(Staircase(chunk_size=1, num_passes=2))))
    if isinstance(schedule, Ladder):
        schedule = replace(schedule, order="ABAB")
    model = build(schedule, CORE, seed=data.draw(small(0, 99)))
    options = {"max_tokens": 7, "sampling": SAMPLED, "stop_tokens": [stop]}
    together = made(stream(model, PROMPTS, **options).speculate(1, 3))
    for row, prompt in enumerate(PROMPTS):
        alone = stream(model, prompt, row_numbers=[row], **options).speculate(1, number)
        assert made(alone)[row] == together[row]


@pytest.mark.parametrize(
    "schedule", [Ladder(num_passes=3, span=5), Staircase(chunk_size=2, num_passes=3)]
)
def test_sampled_pairs_have_the_probabilities_that_the_model_gives_them(schedule):
    model, prompt, num_rows = build(schedule, CORE, seed=1), [1, 2, 3], 5_000
    sampling = SamplingConfig(temperature=1.7, top_k=4, seed=3)
    drafted = stream(model, [prompt] * num_rows, max_tokens=2, sampling=sampling).speculate(1, 2)
    counts = Counter(map(tuple, made(drafted).values()))
    assert 0 < drafted.speculation.num_accepted < drafted.speculation.num_drafted

    def probabilities(tokens):
        logits = model(torch.tensor([tokens]))[0][0, -1] / sampling.temperature
        return logits.where(logits >= logits.topk(4)[0][-1], -torch.inf).softmax(-1).tolist()

    expected = {
        (first, second): num_rows * one * other
        for first, one in enumerate(probabilities(prompt))
        for second, other in enumerate(probabilities([*prompt, first]))
        if one * other
    }
    assert {*counts} <= {*expected}
    # 15 degrees of freedom: 99.9% of chi-squared values are below 37.7.
    assert sum((counts[pair] - want) ** 2 / want for pair, want in expected.items()) < 37.7


def test_as_many_passes_as_the_model_makes_accept_every_draft_and_sample_as_without():
    model = build(Ladder(num_passes=2, span=5), CORE)
    options = {"max_tokens": 15, "sampling": SAMPLED}
    drafted = stream(model, PROMPTS, **options).speculate(2, 4)
    assert made(drafted) == made(stream(model, PROMPTS, **options))
    assert drafted.speculation.num_accepted == drafted.speculation.num_drafted


def test_a_stream_is_saved_between_rounds_and_drafts_again_later(tmp_path):
    model = build(Staircase(chunk_size=2, num_passes=3), CORE)
    options = {"max_tokens": None, "sampling": GREEDY}
    drafted = stream(model, PROMPTS, **options).speculate(1, 3)
    first = made(drafted.take(5))
    save_stream(drafted, tmp_path / "stream")
    resumed = load_stream(tmp_path / "stream", model).speculate(2, 4)
    rest = made(resumed.take(6))
    expected = made(stream(model, PROMPTS, **options).take(11))
    assert {row: first[row] + rest[row] for row in first} == expected


@pytest.mark.parametrize(
    ("model", "passes", "number", "message"),
    [
        (lstm(), 1, 4, "drafts are for schedules with num_passes"),
        (build(Ladder(num_passes=2, span=5)), 0, 4, "draft_passes must be"),
        (build(Ladder(num_passes=2, span=5)), 1, 0, "draft_tokens must be"),
    ],
)
def test_wrong_drafts_are_refused(model, passes, number, message):
    tokens = stream(model, [1], max_tokens=3)
    with pytest.raises(ValueError, match=message):
        tokens.speculate(passes, number)


def test_a_round_that_fails_leaves_the_stream_as_it_was():
    model = build(Ladder(num_passes=3, span=5), CORE)
    options = {"max_tokens": 12, "sampling": GREEDY}
    drafted = stream(model, PROMPTS, **options).speculate(1, 4)
    first = [next(drafted) for _ in range(3)]
    fails = iter([True])

    def decode(_):
        if next(fails, False):
            raise RuntimeError("no text")
        return b"x"

    drafted.waiting.clear()
    drafted.decode = decode
    before = drafted.num_made
    with pytest.raises(RuntimeError, match="no text"):
        drafted.next_round()
    assert drafted.num_made == before
    expected = made(stream(model, PROMPTS, **options))
    assert {one.row: [one.token] for one in first} == {row: expected[row][:1] for row in expected}
    rest = made(drafted)
    assert all(expected[row][before:] == rest[row] for row in rest)
