"""What the documentation shows is what happens: code runs, commands print, links lead somewhere."""

import re
import shlex
import sys
import types
from contextlib import redirect_stdout
from pathlib import Path

import pytest
import typer

from commands import call
from staircase_attention.cli import main
from staircase_attention.cli.app import app
from staircase_attention.cli.arguments import parse_assignments
from staircase_attention.cli.experiments import chosen_recipes
from staircase_attention.experiments import find_recipe, runner, suite, table_rows
from staircase_attention.experiments.comparisons import chosen_names
from staircase_attention.training import TaskChoice
from staircase_attention.training.learner import check_recipe

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs" / "tutorials").glob("*.md")),
    *sorted((ROOT / "docs" / "results").glob("*.md")),
]
ALL_PAGES = sorted({*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")})
FIGURES = Path("docs") / "figures"

CODE = re.compile(r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", re.MULTILINE | re.DOTALL)
"""Code, and what it prints where a block of text comes right after it."""
FILE = re.compile(r"# ([\w-]+\.py)\n")
"""The first line of code that is a file of the reader's."""
SESSION = re.compile(r"^```console\n(.*?)^```\n", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^\$ (staircase .*)\n((?:(?!\$ ).*\n)*)", re.MULTILINE)
SHELL = re.compile(r"^```sh\n(.*?)^```\n", re.MULTILINE | re.DOTALL)
LONG_COMMAND = re.compile(r"^(?:torchrun .*--no-python )?staircase (.*)\n", re.MULTILINE)
"""A command in a block of sh, which takes too long to be run here."""
MEASURED = re.compile(r"\d+\.\d+| on [^;\n]*;|\b[0-9a-f]{64}\b")
"""What differs from machine to machine when a model is trained: scores, times, the device,
and so the checksum of its weights."""
TRAINS = re.compile(r"staircase (?:train|resume|eval)\b")
LINK = re.compile(r'(?:\]\(|(?:src|href)=")([^)"#:\s]+)[#)"]')
WRITING = re.compile(r"<text[^>]*>([^<]*)</text>")

pytestmark = pytest.mark.filterwarnings("error")


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def line_of(text: str, place: int) -> int:
    return text.count("\n", 0, place) + 1


def blocks(pattern: re.Pattern[str]) -> list:
    """What is in every block of a kind, each named after its page and line."""
    return [
        pytest.param(block[1], id=f"{name_of(page)}:{line_of(page.read_text(), block.start())}")
        for page in PAGES
        for block in pattern.finditer(page.read_text())
    ]


def trimmed(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().splitlines()]


def comparable(command: str, text: str) -> list[str]:
    return trimmed(MEASURED.sub("_", text) if TRAINS.match(command) else text)


def files() -> dict[str, str]:
    """The files that the documentation tells its reader to write."""
    code = [block[1] for page in PAGES for block in CODE.finditer(page.read_text())]
    return {name[1]: block for block in code if (name := FILE.match(block))}


class Inline:
    """Stands for a process of the package: runs its command here, where all is imported."""

    def __init__(self, command, *, stdout, **_):
        with open(stdout.fileno(), "w", closefd=False) as log, redirect_stdout(log):
            self.status = call(*command[len(runner.STAIRCASE) :])

    def poll(self):
        return self.status


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder to run in, with the reader's files, and room for pictures where they are put."""
    (tmp_path / FIGURES).mkdir(parents=True)
    for name, text in files().items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(runner, "subprocess", types.SimpleNamespace(Popen=Inline))
    return tmp_path


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_code_runs_in_order_and_prints_what_is_shown(page, folder, monkeypatch, capsys):
    text = page.read_text()
    module = types.ModuleType("documented")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    for block in CODE.finditer(text):
        # Lines are numbered as on the page, so that a traceback points there.
        before = "\n" * line_of(text, block.start())
        exec(compile(before + block[1], name_of(page), "exec"), vars(module))
        assert trimmed(capsys.readouterr().out) == trimmed(block[2] or ""), block[1]


@pytest.mark.parametrize("session", blocks(SESSION))
def test_the_commands_of_a_session_print_what_is_shown(session, folder, monkeypatch, capsys):
    for command, shown in COMMAND.findall(session):
        monkeypatch.setattr(sys, "argv", shlex.split(command))
        with pytest.raises(SystemExit):
            main()
        printed = capsys.readouterr()
        assert comparable(command, printed.out + printed.err) == comparable(command, shown)
    for picture in (folder / FIGURES).iterdir():
        ours = (ROOT / FIGURES / picture.name).read_text()
        assert WRITING.findall(ours) == WRITING.findall(picture.read_text())


@pytest.mark.parametrize("block", blocks(SHELL))
def test_commands_that_take_long_name_what_is_there(block, folder):
    for line in LONG_COMMAND.findall(block):
        name, *words = shlex.split(line, comments=True)
        given = typer.main.get_command(app).commands[name].make_context(name, words).params
        overrides = parse_assignments(given.get("overrides") or [])
        if name == "train":
            recipe = find_recipe(given["recipe"]).override(overrides)
            # Corpora are not at hand, so that only a task's data can be looked at.
            if isinstance(recipe.task, TaskChoice):
                check_recipe(recipe)
        if name == "suite":
            own = given["own"] or []
            recipes = suite.suite_recipes(
                suite.SMALL,
                own_recipe=next((word for word in own if "=" not in word), None),
                own=parse_assignments(word for word in own if "=" in word),
                overrides=overrides,
            )
            check_recipe(recipes["parity-check"][-1])
        if name == "compare":
            for recipe in chosen_recipes(given["words"], given["vary"] or []):
                check_recipe(recipe)
        if name == "reproduce":
            rows = table_rows(given["table"])
            chosen_names(given["rows"] and given["rows"].split(","), rows)
            check_recipe(rows[0].recipe.override(overrides))


@pytest.mark.parametrize("page", ALL_PAGES, ids=name_of)
def test_links_lead_to_files_that_are_there(page):
    for link in LINK.findall(page.read_text()):
        assert (page.parent / link).exists(), link
