"""What all tests of kernels share."""

import pytest


@pytest.fixture(autouse=True)
def _unwritten(unwritten_is_nan):
    """Memory that nobody has written is NaN in all of them."""
