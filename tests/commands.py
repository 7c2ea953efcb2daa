"""Running the command line inside the tests."""

import sys

import pytest

from staircase_attention.cli import main


def call(*words) -> int:
    """Run a command line; give its exit status."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["staircase", *map(str, words)])
        with pytest.raises(SystemExit) as caught:
            main()
    return int(caught.value.code or 0)
