"""Running the command line inside the tests."""

import pytest

from commands import call


@pytest.fixture
def output_of(staircase):
    """Run a command line that succeeds; give its output."""

    def run(*words) -> str:
        status, out, err = staircase(*words)
        assert status == 0, err
        return out

    return run


@pytest.fixture
def refused(staircase):
    """Run a command line that a user got wrong; give the one line of error."""

    def run(*words) -> str:
        status, out, err = staircase(*words)
        assert (status, out) == (2, ""), err
        assert err.startswith("staircase: ")
        assert len(err.strip().splitlines()) == 1
        return err

    return run


@pytest.fixture(scope="session")
def task_run(tmp_path_factory):
    """A run of six updates on a task."""
    folder = tmp_path_factory.mktemp("task") / "run"
    assert not call(
        "train", "parity/staircase", "training.num_updates=6", "training.evaluate_every=3",
        "training.checkpoint_every=3", "task.options.num_valid=20", "task.options.num_test=20",
        "--output", folder,
    )  # fmt: skip
    return folder


def train_on_text(folder, *changes):
    (folder / "raw").mkdir()
    for number in range(30):
        (folder / "raw" / f"{number}.txt").write_text(f"{number} it was a dark night.\n" * 9)
    assert not call(
        "prepare", "text", folder / "raw", "--tokeniser", "bytes", "--valid", "0.2",
        "--test", "0.2", "--output", folder / "corpus", "--quiet",
    )  # fmt: skip
    assert not call(
        "train", "base-small/staircase", f"task.folder={folder / 'corpus'}",
        "training.num_updates=2", "training.num_lanes=2", "training.evaluation_lanes=2",
        "training.evaluation_tokens=128", "model.core.width=16", *changes,
        "--output", folder / "run", "--quiet",
    )  # fmt: skip
    return folder / "run"


@pytest.fixture(scope="session")
def text_run(tmp_path_factory):
    """A byte model that has seen two batches."""
    return train_on_text(tmp_path_factory.mktemp("text"))


@pytest.fixture(scope="session")
def episodic_run(tmp_path_factory):
    """The same with texts that are segments of their own."""
    return train_on_text(tmp_path_factory.mktemp("episodic"), "task.form=episodic")


@pytest.fixture(scope="session")
def ladder_run(tmp_path_factory):
    """The same with a Ladder."""
    ladder = {"name": "ladder", "num_passes": 2, "span": 16}
    return train_on_text(tmp_path_factory.mktemp("ladder"), f"model.schedule={ladder}")
