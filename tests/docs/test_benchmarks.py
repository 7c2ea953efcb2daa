"""The scripts in benchmarks, which need GPUs or hours, import only what the package has."""

import ast
import importlib
from pathlib import Path

import pytest

SCRIPTS = sorted((Path(__file__).parents[2] / "benchmarks").glob("*.py"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_all_that_a_script_imports_is_there(script):
    for line in ast.parse(script.read_text()).body:
        if isinstance(line, ast.ImportFrom) and str(line.module).startswith("staircase_attention"):
            module = importlib.import_module(line.module)
            for name in line.names:
                assert hasattr(module, name.name), f"{line.module}.{name.name}"
