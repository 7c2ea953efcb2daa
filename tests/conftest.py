"""Shapes in signatures are checked while the tests run, and property tests are reproducible."""

import os
from typing import Any

import hypothesis
import numpy as np
import pytest
import torch
from jaxtyping import install_import_hook


def interpret_kernels() -> None:
    """Check kernels without a GPU by Triton's interpreter, which must be asked for beforehand."""
    os.environ["TRITON_INTERPRET"] = "1"
    try:
        import triton.language as tl
        from triton.runtime import interpreter
    except ImportError:
        return
    patch_tensors = interpreter._patch_lang_tensor
    multiply = interpreter.InterpreterBuilder.create_dot

    def patch_more(tensor: Any, scope: Any) -> None:
        # Triton 3.6's interpreter cannot take its own numbers as bounds of loops with numpy 2.4,
        patch_tensors(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    def multiply_wide(self: Any, left: Any, right: Any, *others: Any) -> Any:
        # and multiplies the bits of bfloat16 as if they were whole numbers.
        return multiply(self, widened(left), widened(right), *others)

    def widened(handle: Any) -> Any:
        if handle.dtype.scalar != tl.bfloat16:
            return handle
        wide = interpreter._convert_float(handle.data, tl.bfloat16, tl.float32, None)
        return interpreter.TensorHandle(wide.view(np.float32), tl.float32)

    interpreter._patch_lang_tensor = patch_more
    interpreter.InterpreterBuilder.create_dot = multiply_wide


if not torch.cuda.is_available():
    interpret_kernels()

# Where tensors of many shapes meet. User-facing functions check their arguments themselves, and
# checking every helper as well would treble the time of the tests.
CHECKED = (
    "staircase_attention.attention.reference",
    "staircase_attention.attention.skewed",
    "staircase_attention.layers.core",
    "staircase_attention.layers.memory",
)

try:
    import beartype  # noqa: F401
except ImportError:
    pass
else:
    install_import_hook(list(CHECKED), "beartype.beartype")

hypothesis.settings.register_profile(
    "reproducible", deadline=None, derandomize=True, max_examples=25, print_blob=True
)
hypothesis.settings.load_profile("reproducible")


@pytest.fixture(scope="session")
def small_run(tmp_path_factory):
    """The folder of a finished run, to be read and scored, not changed."""
    from small_runs import small_recipe

    from staircase_attention.training import train

    folder = tmp_path_factory.mktemp("small") / "run"
    train(small_recipe(), folder)
    return folder
