"""Running the command line inside the tests."""

import os
import sys
from contextlib import redirect_stderr

import pytest

from staircase_attention.cli import main


def call(*words) -> int:
    """Run a command line; give its exit status."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["staircase", *map(str, words)])
        with pytest.raises(SystemExit) as caught:
            main()
    return int(caught.value.code or 0)


def call_in_group(errors, *words) -> None:
    """End a process as a command line does, as the first of a group, errors written to a file."""
    os.setsid()
    with open(errors, "w") as file, redirect_stderr(file):
        status = call(*words)
    sys.exit(status)
