"""What tests of the fused core share."""

import pytest


@pytest.fixture
def with_kernels(monkeypatch, unwritten_is_nan):
    """Run kernels through the interpreter, with few programs each."""
    pytest.importorskip("triton")
    from staircase_attention.engine.kernels import activation, norm, relative_attention

    # The interpreter takes its time for every program, busy or not.
    monkeypatch.setattr(norm, "NUM_PROGRAMS", 2)
    monkeypatch.setattr(activation, "NUM_PROGRAMS", 2)
    monkeypatch.setattr(relative_attention, "NUM_TABLE_SUMS", 2)
