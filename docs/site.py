"""What the site has beside the pages in docs: the README as its start, decisions, linked files."""

import re
from pathlib import Path

import griffe
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
# What pages link to and lies beside docs.
PAGES = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")
LINKED = ("benchmarks/results", "examples", "src/staircase_attention/pretrained", "tests/oracle.py")
EXAMPLE = re.compile(r"^>>> .*(?:\n.+)*", re.MULTILINE)
PACKAGE = re.compile(r"^::: ([\w.]+)$", re.MULTILINE)
EXPORT = re.compile(r"^from ([\w.]+) import (\w+) as", re.MULTILINE)
UP = re.compile(r"\]\((?:\.\./)+(" + "|".join(LINKED) + ")")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """List all decisions."""
    names = sorted(path.name for path in (ROOT / "docs" / "decisions").glob("*.md"))
    config.nav.append({"Decisions": [f"decisions/{name}" for name in names]})
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the README as the first page, and the files that pages link to."""
    for name in PAGES:
        text = re.sub(r'((?:\]\(|src="))docs/', r"\1", (ROOT / name).read_text())
        text = text.replace("](decisions)", "](decisions/0001-timetables-and-one-executor.md)")
        text = text.replace("](tutorials)", "](tutorials/loop.md)")
        page = "index.md" if name == "README.md" else name
        files.append(File.generated(config, page, content=text))
    for linked in LINKED:
        for path in sorted({ROOT / linked, *(ROOT / linked).rglob("*")}):
            if path.is_file():
                name = str(path.relative_to(ROOT))
                files.append(File.generated(config, name, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let links that leave docs lead to the site's own copies, and list what packages export."""
    above = "../" * page.file.src_uri.count("/")
    markdown = UP.sub(lambda found: f"]({above}{found[1]}", markdown)
    return PACKAGE.sub(exports, markdown)


def exports(found: re.Match[str]) -> str:
    """What a package declares in its stub, or the package itself if it has none."""
    stub = ROOT / "src" / found[1].replace(".", "/") / "__init__.pyi"
    if not stub.exists():
        return found[0]
    own = [pair for pair in EXPORT.findall(stub.read_text()) if pair[0].startswith(found[1])]
    return "\n".join(f"::: {module}.{name}" for module, name in own)


class Doctests(griffe.Extension):
    """Examples in docstrings, which begin with >>>, as code."""

    def on_object(self, *, obj: griffe.Object, **_: object) -> None:
        """Put fences around them."""
        if obj.docstring:
            obj.docstring.value = EXAMPLE.sub(r"```pycon\n\g<0>\n```", obj.docstring.value)
