"""The command `staircase`: parse, call, print."""

from staircase_attention.cli.main import main

__all__ = ["main"]
