"""What the documentation shows is what happens: code runs, commands print, links lead somewhere."""

import re
import shlex
import sys
import types
from pathlib import Path

import pytest

from staircase_attention.cli import main

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
ALL_PAGES = sorted({*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")})
FIGURES = Path("docs") / "figures"

CODE = re.compile(r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", re.MULTILINE | re.DOTALL)
"""Code, and what it prints where a block of text comes right after it."""
SESSION = re.compile(r"^```console\n(.*?)^```\n", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^\$ (staircase .*)\n((?:(?!\$ ).*\n)*)", re.MULTILINE)
LINK = re.compile(r'(?:\]\(|(?:src|href)=")([^)"#:\s]+)[#)"]')
WRITING = re.compile(r"<text[^>]*>([^<]*)</text>")

pytestmark = pytest.mark.filterwarnings("error")


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def commands() -> list[tuple[str, str]]:
    sessions = [session for page in PAGES for session in SESSION.findall(page.read_text())]
    return [command for session in sessions for command in COMMAND.findall(session)]


def trimmed(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().splitlines()]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder to run in, with room for pictures where the documentation puts them."""
    (tmp_path / FIGURES).mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    return tmp_path


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_code_runs_in_order_and_prints_what_is_shown(page, folder, monkeypatch, capsys):
    text = page.read_text()
    module = types.ModuleType("documented")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    for block in CODE.finditer(text):
        # Lines are numbered as on the page, so that a traceback points there.
        before = "\n" * (text.count("\n", 0, block.start()) + 1)
        exec(compile(before + block[1], name_of(page), "exec"), vars(module))
        assert trimmed(capsys.readouterr().out) == trimmed(block[2] or ""), block[1]


@pytest.mark.parametrize(("command", "shown"), commands())
def test_a_command_prints_what_is_shown(command, shown, folder, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", shlex.split(command))
    with pytest.raises(SystemExit):
        main()
    printed = capsys.readouterr()
    assert trimmed(printed.out + printed.err) == trimmed(shown)
    for picture in (folder / FIGURES).iterdir():
        ours = (ROOT / FIGURES / picture.name).read_text()
        assert WRITING.findall(ours) == WRITING.findall(picture.read_text())


@pytest.mark.parametrize("page", ALL_PAGES, ids=name_of)
def test_links_lead_to_files_that_are_there(page):
    for link in LINK.findall(page.read_text()):
        assert (page.parent / link).exists(), link
