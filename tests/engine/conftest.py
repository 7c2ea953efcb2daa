"""What tests of the fused core share."""

import pytest

from staircase_attention.engine import fused


@pytest.fixture
def with_kernels(monkeypatch, unwritten_is_nan):
    """Let models on a CPU take the kernels, through the interpreter."""
    pytest.importorskip("triton")
    from staircase_attention.engine.kernels import activation, norm, relative_attention

    monkeypatch.setattr(fused, "is_served", lambda device: True)
    # The interpreter takes its time for every program, busy or not.
    monkeypatch.setattr(norm, "NUM_PROGRAMS", 2)
    monkeypatch.setattr(activation, "NUM_PROGRAMS", 2)
    monkeypatch.setattr(relative_attention, "NUM_TABLE_SUMS", 2)
