"""The scripts in benchmarks import only what the package has, and their data are JSON."""

import ast
import importlib
import json
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SCRIPTS = sorted(BENCHMARKS.glob("*.py"))
DATA = sorted((BENCHMARKS / "results").glob("*.json"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_all_that_a_script_imports_is_there(script):
    for line in ast.parse(script.read_text()).body:
        if isinstance(line, ast.ImportFrom) and str(line.module).startswith("staircase_attention"):
            module = importlib.import_module(line.module)
            for name in line.names:
                assert hasattr(module, name.name), f"{line.module}.{name.name}"


@pytest.mark.parametrize("data", DATA, ids=lambda data: data.stem)
def test_the_data_of_the_results_can_be_read(data):
    assert json.loads(data.read_text())
