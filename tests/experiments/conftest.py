"""Experiments whose runs take no time and whose reports have no figures."""

import pytest
from fake_runs import FakeStaircase


@pytest.fixture(scope="module")
def fakes(tmp_path_factory):
    """For fixtures that the tests of a module share."""
    with pytest.MonkeyPatch.context() as patch:
        yield FakeStaircase(patch, tmp_path_factory.mktemp("calls") / "calls")


@pytest.fixture
def fake(monkeypatch, tmp_path_factory):
    return FakeStaircase(monkeypatch, tmp_path_factory.mktemp("calls") / "calls")
