"""What all tests of kernels share."""

import pytest
import torch


@pytest.fixture(autouse=True)
def _interpreted(unwritten_is_nan, monkeypatch):
    """Memory that nobody has written is NaN, and few programs share what many share on a GPU."""
    if torch.cuda.is_available():
        return
    from staircase_attention.engine.kernels import relative_attention

    # The interpreter takes its time for every program, busy or not.
    monkeypatch.setattr(relative_attention, "NUM_TABLE_SUMS", 8)
