"""Installs what `make release` built in fresh environments, each extra alone, and tries it.

python tests/release.py dist
"""

import subprocess
import sys
import tempfile
import venv
from pathlib import Path

CONSTRAINTS = Path(__file__).parents[1] / "constraints.txt"
TRY = "import staircase_attention.{}"
EXTRAS = {
    "": "cli",
    "corpora": "data.reddit",
    "docs": "cli",
    "huggingface": "huggingface",
    "onnx": "generation.onnx",
    "serve": "serve",
}


def main() -> None:
    """Try the source archive, then the wheel with each extra."""
    (source,) = Path(sys.argv[1]).glob("*.tar.gz")
    (wheel,) = Path(sys.argv[1]).glob("*.whl")
    attempt(source, "")
    for extra in EXTRAS:
        attempt(wheel, extra)


def attempt(package: Path, extra: str) -> None:
    """Install in a new environment, import what the extra is for, and score a shipped model."""
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        commands = Path(folder) / "bin"
        install = [commands / "python", "-m", "pip", "install", "--quiet", "-c", CONSTRAINTS]
        # torch first: an unpinned one brings gigabytes.
        run([*install, "torch"], folder)
        run([*install, f"{package.resolve()}[{extra}]" if extra else package.resolve()], folder)
        run([commands / "python", "-c", TRY.format(EXTRAS[extra])], folder)
        scored = [commands / "staircase", "eval", "pretrained:parity-staircase"]
        run(scored, folder)
    print(f"{package.name} {extra or 'alone'}: installed, imported, scored")


def run(command: list[object], folder: str) -> None:
    """Run it there, so that nothing of this folder is imported."""
    subprocess.run([str(word) for word in command], cwd=folder, check=True)


if __name__ == "__main__":
    main()
