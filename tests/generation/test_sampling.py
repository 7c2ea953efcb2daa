"""Filters against slow, obvious twins; draws that depend on seed, row and count alone."""

import math
import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from staircase_attention.generation import SamplingConfig
from staircase_attention.generation.sampling import choose, filtered, penalised, pick, uniform

PENALTY = "repetition_penalty must be a number of at least 0.001 and of at most 1000"
# Few distinct values, so that ties are common.
logits_of_a_row = st.lists(st.integers(-6, 6).map(lambda half: half / 2), min_size=1, max_size=9)


@st.composite
def batches(draw):
    """Logits of a few rows of equal length."""
    first = draw(logits_of_a_row)
    row = st.lists(st.floats(-4, 4), min_size=len(first), max_size=len(first))
    return torch.tensor([first, *draw(st.lists(row, max_size=3))], dtype=torch.float64)


def probabilities(row: list[float]) -> list[float]:
    weights = [math.exp(one - max(row)) for one in row]
    return [weight / math.fsum(weights) for weight in weights]


def likeliest_first(row: list[float]) -> list[int]:
    return sorted(range(len(row)), key=lambda token: (-row[token], token))


def kept(logits: torch.Tensor, **options) -> list[set[int]]:
    """The tokens that a filter keeps, with their scores unchanged."""
    before = logits - logits.amax(-1, keepdim=True)
    after = filtered(logits, SamplingConfig(**options))
    assert ((after == before) | (after == -math.inf)).all()
    return [{token for token, one in enumerate(row) if one > -math.inf} for row in after.tolist()]


@given(logits=batches(), k=st.integers(1, 12))
def test_top_k_keeps_the_k_likeliest(logits, k):
    expected = [set(likeliest_first(row)[:k]) for row in logits.tolist()]
    assert kept(logits, top_k=k) == expected


@given(logits=batches(), p=st.floats(0.01, 1))
def test_top_p_keeps_the_smallest_set_of_probability_p(logits, p):
    for row, tokens in zip(logits.tolist(), kept(logits, top_p=p), strict=True):
        chances, order = probabilities(row), likeliest_first(row)
        assert tokens == set(order[: len(tokens)])
        # Where a sum is p to the last digits, either answer is right.
        assert math.fsum(chances[token] for token in tokens) >= p - 1e-12
        assert math.fsum(chances[token] for token in order[: len(tokens) - 1]) < p + 1e-12
    assert kept(logits, top_p=1.0) == [set(range(logits.shape[1]))] * len(logits)


@given(logits=batches(), p=st.floats(0, 1))
def test_min_p_keeps_tokens_near_the_likeliest(logits, p):
    for row, tokens in zip(logits.tolist(), kept(logits, min_p=p), strict=True):
        assert tokens == {token for token, one in enumerate(row) if math.exp(one - max(row)) >= p}


@given(logits=batches(), temperature=st.floats(0.05, 20))
def test_temperature_divides_logits(logits, temperature):
    found = filtered(logits, SamplingConfig(temperature=temperature)).softmax(-1)
    for row, chances in zip(logits.tolist(), found.tolist(), strict=True):
        assert chances == pytest.approx(probabilities([one / temperature for one in row]))


@given(logits=batches(), penalty=st.floats(0.2, 5), data=st.data())
def test_repetition_penalty_divides_positive_and_multiplies_other_logits(logits, penalty, data):
    rows, vocab_size = logits.shape
    # Some ids are inputs only.
    recent = [data.draw(st.lists(st.integers(0, vocab_size + 1), max_size=4)) for _ in range(rows)]
    found = penalised(SamplingConfig(repetition_penalty=penalty), logits, recent)
    for row, tokens, changed in zip(logits.tolist(), recent, found.tolist(), strict=True):
        for token, before in enumerate(row):
            after = before / penalty if before > 0 else before * penalty
            assert changed[token] == (after if token in tokens else before)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16])
@pytest.mark.parametrize("penalty", [1e-3, 1e3])
def test_the_largest_and_smallest_penalties_leave_logits_finite(dtype, penalty):
    logits = torch.tensor([[-60.0, 60.0, 0.0]], dtype=dtype)
    config = SamplingConfig(repetition_penalty=penalty)
    assert penalised(config, logits, [[0, 1, 2]]).isfinite().all()


configs = st.builds(
    SamplingConfig,
    repetition_penalty=st.sampled_from([1.0, 1.3]),
    temperature=st.sampled_from([0.3, 1.0, 2.5]),
    top_k=st.none() | st.integers(1, 6),
    top_p=st.none() | st.floats(0.1, 1),
    min_p=st.none() | st.floats(0, 1),
    seed=st.integers(0, 5),
)


@given(logits=batches(), config=configs)
def test_after_all_filters_the_likeliest_token_is_there(logits, config):
    scores = filtered(logits, config)
    assert (scores.gather(-1, logits.argmax(-1, keepdim=True)) > -math.inf).all()


@given(logits=batches(), config=configs, count=st.integers(0, 99))
def test_a_row_is_sampled_as_if_it_were_alone(logits, config, count):
    rows = range(3, 3 + len(logits))
    recent = [[row % 4] for row in rows]
    together, _ = choose(config, logits, recent, rows=rows, count=count)
    for place, row in enumerate(rows):
        part = slice(place, place + 1)
        found, _ = choose(config, logits[part], recent[part], rows=[row], count=count)
        assert found.tolist() == [together[place]]


@given(logits=batches(), draw=st.floats(0, 1, exclude_max=True))
def test_a_draw_falls_where_the_running_sum_first_exceeds_it(logits, draw):
    found = pick(logits, torch.full((len(logits),), draw).double()).tolist()
    for row, token in zip(logits.tolist(), found, strict=True):
        chances = probabilities(row)
        assert math.fsum(chances[:token]) <= draw + 1e-12
        assert math.fsum(chances[: token + 1]) > draw - 1e-12


@pytest.mark.parametrize(("draw", "expected"), [(0.0, [1, 0]), (1 - 2**-53, [2, 0])])
def test_no_draw_gives_a_token_that_was_dropped(draw, expected):
    scores = torch.tensor([[-math.inf, 0.0, 0.1, -math.inf], [0.0, -800.0, -900.0, -math.inf]])
    assert pick(scores.double(), torch.tensor([draw, draw]).double()).tolist() == expected


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@given(logits=batches(), seed=st.integers(0, 9))
def test_greedy_is_temperature_zero_is_top_one_is_the_limit_of_low_temperature(dtype, logits, seed):
    logits = logits.to(dtype)
    expected = [likeliest_first(row)[0] for row in logits.tolist()]
    for config in (
        SamplingConfig(temperature=0, seed=seed),
        SamplingConfig(temperature=0, top_p=0.1, seed=seed),
        SamplingConfig(top_k=1, seed=seed),
        SamplingConfig(top_p=1e-9, seed=seed),
        SamplingConfig(min_p=1.0, top_k=1, temperature=5.0, seed=seed),
        SamplingConfig(temperature=1e-300, top_k=1, seed=seed),
    ):
        found, _ = choose(config, logits, [[]] * len(logits), rows=range(len(logits)), count=0)
        assert found.tolist() == expected


def test_tokens_are_as_frequent_as_their_probabilities():
    """Twenty thousand draws; each count within five standard deviations."""
    number = 20_000
    batch = torch.tensor([[0.0, 1.0, 2.0, -1.0]], dtype=torch.float64).expand(number, -1)
    config = SamplingConfig(temperature=1.5, top_k=3, seed=3)
    tokens, _ = choose(config, batch, [[]] * number, rows=range(number), count=7)
    counts = torch.bincount(tokens, minlength=4).tolist()
    for count, chance in zip(counts, [*probabilities([0.0, 1 / 1.5, 2 / 1.5]), 0.0], strict=True):
        assert abs(count - number * chance) <= 5 * math.sqrt(number * chance * (1 - chance))


@pytest.mark.parametrize("varied", ["seed", "row", "count"])
def test_draws_are_spread_evenly(varied):
    """Each tenth of [0, 1) gets a tenth of the draws, within five standard deviations."""
    fixed = {"seed": 0, "row": 0, "count": 0}
    draws = [uniform(**fixed | {varied: number}) for number in range(5000)]
    assert len(set(draws)) == 5000
    for tenth in range(10):
        number = sum(tenth <= 10 * draw < tenth + 1 for draw in draws)
        assert abs(number - 500) < 5 * math.sqrt(5000 * 0.1 * 0.9)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": -0.1}, "temperature must be a number of at least 0, got -0.1"),
        ({"temperature": math.nan}, "temperature must be a number of at least 0, got nan"),
        ({"temperature": 10**400}, r"temperature must be a number of at least 0, got 10+\.{3}"),
        ({"top_k": 0}, "top_k must be an integer of at least 1, got 0"),
        ({"top_p": 0}, "top_p must be a number over 0 and of at most 1, got 0"),
        ({"top_p": 1.01}, "top_p must be a number over 0 and of at most 1, got 1.01"),
        ({"min_p": -1}, "min_p must be a number of at least 0 and of at most 1, got -1"),
        ({"min_p": 2}, "min_p must be a number of at least 0 and of at most 1, got 2"),
        *(
            ({"repetition_penalty": wrong}, f"{PENALTY}, got {re.escape(repr(wrong))}")
            for wrong in (0, 1e-38, 1e38, math.inf, math.nan)
        ),
        ({"repetition_window": 0}, "repetition_window must be an integer of at least 1, got 0"),
        ({"seed": -1}, "seed must be an integer of at least 0, got -1"),
    ],
)
def test_wrong_settings_are_refused_in_one_line(options, message):
    with pytest.raises(ValueError, match=f"^{message}; use .*$"):
        SamplingConfig(**options)


@pytest.mark.parametrize("temperature", [10**20, 10**300])
def test_a_temperature_may_be_an_integer_of_any_size(temperature):
    logits = torch.tensor([[0.0, 1.0, 5.0]])
    of_integer, of_float = (
        filtered(logits.double(), SamplingConfig(temperature=kind)) for kind in (temperature, 1e300)
    )
    torch.testing.assert_close(of_integer, of_float)


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_logits_that_are_not_finite_are_refused_by_row(wrong):
    logits = torch.tensor([[0.0, 1.0], [wrong, 0.0]])
    with pytest.raises(ValueError, match="in row 9"):
        choose(SamplingConfig(), logits, [[], []], rows=[4, 9], count=0)
