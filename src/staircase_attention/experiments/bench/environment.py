"""What a time depends on, apart from the recipe; the machine's name is not among it."""

import contextlib
import os
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

import staircase_attention
from staircase_attention.training.run_folder import environment

VARIABLES = (
    "CUDA_LAUNCH_BLOCKING",
    "MKL_NUM_THREADS",
    "OMP_NUM_THREADS",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "TRITON_INTERPRET",
)
"""Variables of the environment that change times."""
OUR_PREFIX = "STAIRCASE_"
GIT_SECONDS = 10


def bench_environment(device: torch.device) -> dict[str, Any]:
    """Versions, device, cores, precision, commit."""
    known = {key: value for key, value in environment().items() if key != "command"}
    with contextlib.suppress(metadata.PackageNotFoundError):
        known["packages"]["transformers"] = metadata.version("transformers")
    return known | {
        "processor": processor(),
        "num_cores": os.cpu_count(),
        "cuda": cuda_facts(device) if device.type == "cuda" else None,
        "float32_products": float32_products(),
        "is_deterministic": torch.are_deterministic_algorithms_enabled(),
        "variables": {
            name: value
            for name, value in sorted(os.environ.items())
            if name in VARIABLES or name.startswith(OUR_PREFIX)
        },
        "commit": commit(),
    }


def cuda_facts(device: torch.device) -> dict[str, Any]:
    """The GPU and what drives it."""
    facts = torch.cuda.get_device_properties(device)
    driver = getattr(torch._C, "_cuda_getDriverVersion", None)
    return {
        "gpu": facts.name,
        "capability": f"{facts.major}.{facts.minor}",
        "memory_bytes": facts.total_memory,
        "num_multiprocessors": facts.multi_processor_count,
        "runtime": torch.version.cuda,
        "driver": None if driver is None else driver(),
        "cudnn": torch.backends.cudnn.version(),  # type: ignore[no-untyped-call]
    }


def float32_products() -> dict[str, Any]:
    """In which numbers products of float32 matrices are really reckoned."""
    found: dict[str, Any] = {}
    try:
        found["matmul_precision"] = torch.get_float32_matmul_precision()
        found["allow_tf32"] = torch.backends.cuda.matmul.allow_tf32
        found["cudnn_allow_tf32"] = torch.backends.cudnn.allow_tf32
    except RuntimeError:
        # PyTorch refuses the old words where the new ones were used.
        found["fp32_precision"] = getattr(torch.backends.cuda.matmul, "fp32_precision", None)
    return found


def processor() -> str | None:
    """The CPU's name, where the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return None
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else None


def commit() -> dict[str, Any] | None:
    """The commit that the package is at, if it lies in its own repository."""
    package = Path(staircase_attention.__file__).parent
    top = _git(package, "rev-parse", "--show-toplevel")
    if top is None or Path(top, "src", package.name).resolve() != package.resolve():
        return None
    return {
        "hash": _git(package, "rev-parse", "HEAD"),
        "has_changes": bool(_git(package, "status", "--porcelain", "--", str(package))),
    }


def _git(folder: Path, *words: str) -> str | None:
    """What git says, or None where it has nothing to say."""
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *words],
            capture_output=True,
            text=True,
            timeout=GIT_SECONDS,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
