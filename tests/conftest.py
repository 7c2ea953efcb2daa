"""Shapes in signatures are checked while some tests run, and property tests are reproducible."""

import gc
import os
import tempfile
from pathlib import Path

import hypothesis
import jaxtyping
import pytest
import torch

from commands import call
from interpreting import interpret_kernels

if not torch.cuda.is_available():
    interpret_kernels()

TESTS = Path(__file__).parent
# Code that tests train with is trusted there, not in the store of whoever runs them.
STORE = tempfile.TemporaryDirectory(prefix="staircase-state-")
os.environ["STAIRCASE_STATE_HOME"] = STORE.name
# Where tensors of many shapes meet. User-facing functions check their arguments themselves.
CHECKED = (
    "staircase_attention.attention.reference",
    "staircase_attention.attention.products",
    "staircase_attention.layers.core",
    "staircase_attention.layers.layer",
)

try:
    import beartype  # noqa: F401
except ImportError:
    pass
else:
    jaxtyping.install_import_hook(list(CHECKED), "beartype.beartype")
# In tests that between them meet every model, cut and past. Checks take half of a test's time.
CHECKING = ("attention", "layers", "models/test_oracle.py", "models/test_state.py")

hypothesis.settings.register_profile(
    "reproducible", deadline=None, derandomize=True, max_examples=8, print_blob=True
)
hypothesis.settings.load_profile("reproducible")


def pytest_collection_modifyitems(items):
    """Begin with what takes long, so that no process is left alone with it at the end."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


def pytest_collection_finish():
    """Leave what was imported out of garbage collection, which took a tenth of the time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 20, 100)


def pytest_runtest_setup(item):
    is_checking = any(item.path.is_relative_to(TESTS / place) for place in CHECKING)
    jaxtyping.config.update("jaxtyping_disable", not is_checking)


def pytest_exception_interact(call):
    """Stop where a run was asked to: a time limit's SIGTERM is meant for all tests, not for one."""
    error = call.excinfo.value
    if type(error).__name__ == "StopRequested":
        pytest.exit(f"asked to stop: {error}", returncode=error.exit_status)


@pytest.fixture(scope="session", autouse=True)
def _no_waiting_for_the_disk():
    """It matters only if the machine itself stops, which test_power_loss.py simulates."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture
def unwritten_is_nan():
    """Let memory hold NaN where nobody has written, so that it shows where it is read."""
    # On a GPU this mode has demands on cuBLAS, too.
    torch.use_deterministic_algorithms(not torch.cuda.is_available())
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture(scope="session")
def small_run(tmp_path_factory):
    """The folder of a finished run, to be read and scored, not changed."""
    from small_runs import small_recipe

    from staircase_attention.training import train

    folder = tmp_path_factory.mktemp("small") / "run"
    train(small_recipe(), folder)
    return folder


@pytest.fixture
def staircase(capsys):
    """Run a command line; give its exit status, output and error output."""

    def run(*words) -> tuple[int, str, str]:
        capsys.readouterr()
        status = call(*words)
        output = capsys.readouterr()
        return status, output.out, output.err

    return run
