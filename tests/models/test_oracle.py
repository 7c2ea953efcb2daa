"""Every model agrees with a separate, token-by-token reading of its definition."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from building import EXACT, SCHEDULES, models, tokens
from oracle import oracle_logits
from staircase_attention.schedules import schedule


@pytest.fixture(autouse=True, scope="module")
def _short_runs():
    """Runs of tokens are cut here, too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(schedule, "LONGEST_RUN", 4)
        yield


@pytest.mark.parametrize("name", SCHEDULES)
@settings(max_examples=6)
@given(data=st.data(), order=st.sampled_from(["window", "chunk"]))
def test_logits_and_gradients_of_every_parameter_agree_with_the_oracle(name, data, order):
    model = data.draw(models(name))
    batch = data.draw(tokens(max_batch=2, max_length=13))
    weights = torch.randn(*batch.shape, model.output_size, dtype=torch.float64)
    parameters = dict(model.named_parameters())

    logits, _ = model(batch, order=order)
    expected = oracle_logits(parameters, model.config, model.schedule, batch)
    torch.testing.assert_close(logits, expected, **EXACT)

    ours = torch.autograd.grad((logits * weights).sum(), parameters.values(), allow_unused=True)
    theirs = torch.autograd.grad((expected * weights).sum(), parameters.values(), allow_unused=True)
    for key, mine, other in zip(parameters, ours, theirs, strict=True):
        zero = torch.zeros_like(parameters[key])
        mine = zero if mine is None else mine
        other = zero if other is None else other
        torch.testing.assert_close(mine, other, **EXACT, msg=lambda text, key=key: f"{key}: {text}")
