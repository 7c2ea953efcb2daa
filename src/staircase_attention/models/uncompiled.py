"""Methods that torch.compile leaves as they are."""

import functools
import sys
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

Given = ParamSpec("Given")
Made = TypeVar("Made")


def left_uncompiled(method: Callable[Given, Made]) -> Callable[Given, Made]:
    """As torch.compiler.disable, but without its import of seconds where nobody compiles."""
    marked: list[Callable[Given, Made]] = []

    @functools.wraps(method)
    def call(*arguments: Given.args, **options: Given.kwargs) -> Made:
        if "torch._dynamo" not in sys.modules:
            return method(*arguments, **options)
        if not marked:
            marked.append(torch.compiler.disable(method))  # type: ignore[no-untyped-call]
        return marked[0](*arguments, **options)

    return call
