"""The LSTM baseline keeps to the same rules of state as the family."""

import pytest
import torch

from building import random_tokens
from staircase_attention.models import LSTMSequenceModel, LSTMState


@pytest.fixture
def model():
    torch.manual_seed(0)
    return LSTMSequenceModel(vocab_size=7, output_size=5, width=6, num_layers=2).double()


def test_a_reset_row_equals_a_fresh_stream_and_the_others_go_on(model):
    tokens = random_tokens(3, 12)
    whole, _ = model(tokens)
    _, state = model(tokens[:, :7])
    after, _ = model(tokens[:, 7:], state.reset([False, True, False]))
    fresh, _ = model(tokens[1:2, 7:])
    torch.testing.assert_close(after[1:2], fresh, rtol=0, atol=1e-12)
    torch.testing.assert_close(after[[0, 2]], whole[[0, 2], 7:], rtol=0, atol=1e-12)


def test_a_reset_heals_a_row_that_is_not_finite(model):
    _, state = model(random_tokens(2, 4))
    spoilt = state.map(lambda tensor: tensor.index_fill(1, torch.tensor([1]), torch.nan))
    healed = spoilt.reset([False, True])
    assert torch.isfinite(healed.hidden).all()
    assert torch.equal(healed.select(torch.tensor([0])).cell, state.cell[:, :1])


def test_wrong_states_are_refused_in_one_line(model):
    _, state = model(random_tokens(2, 4))
    with pytest.raises(ValueError, match=r"must be 2 layers x 3 rows x 6, got \(2, 2, 6\)"):
        model(random_tokens(3, 4), state)
    with pytest.raises(ValueError, match="second value of a call of the model, got tuple; pass"):
        model(random_tokens(2, 4), (state.hidden, state.cell))
    with pytest.raises(ValueError, match="each of the 2 batch rows"):
        state.reset([True])
    with pytest.raises(ValueError, match="rows must be numbers from 0 to 1"):
        state.select([5])
    with pytest.raises(ValueError, match=r"of the model, torch.float64, got torch.float32; use"):
        model(random_tokens(2, 4), state.to(dtype=torch.float32))
    mixed = LSTMState(hidden=state.hidden, cell=state.cell.half())
    with pytest.raises(ValueError, match=r"torch.float64, got torch.float16, torch.float64; use"):
        model(random_tokens(2, 4), mixed)
    with pytest.raises(ValueError, match="on the device of the model, cpu, got meta; use state"):
        model(random_tokens(2, 4), state.to("meta"))
    with pytest.raises(ValueError, match=r"to join must be one or more, got none; pass a list"):
        LSTMState.join([])


def test_no_tokens_change_nothing(model):
    tokens = random_tokens(2, 4)
    _, state = model(tokens)
    logits, after = model(tokens[:, :0], state)
    assert logits.shape == (2, 0, 5)
    assert after is state
    logits, before = model(tokens[:, :0])
    assert logits.shape == (2, 0, 5)
    torch.testing.assert_close(model(tokens, before)[0], model(tokens)[0], rtol=0, atol=0)
