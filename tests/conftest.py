"""Shapes in signatures are checked while the tests run, and property tests are reproducible."""

import hypothesis
from jaxtyping import install_import_hook

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
