"""The examples for clusters can be parsed."""

import subprocess
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_the_slurm_script_is_a_script():
    subprocess.run(["bash", "-n", EXAMPLES / "slurm.sh"], check=True)


def test_the_kubernetes_job_has_as_many_pods_as_parts():
    job = pytest.importorskip("yaml").safe_load((EXAMPLES / "kubernetes.yaml").read_text())
    (container,) = job["spec"]["template"]["spec"]["containers"]
    assert container["args"][0].endswith(f'/{job["spec"]["completions"]}"')
