"""Running the command line inside the tests."""

import sys

import pytest

from staircase_attention.cli import main


@pytest.fixture
def staircase(monkeypatch, capsys):
    """Run a command line; give its exit status, output and error output."""

    def run(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["staircase", *words])
        with pytest.raises(SystemExit) as caught:
            main()
        output = capsys.readouterr()
        return int(caught.value.code or 0), output.out, output.err

    return run
