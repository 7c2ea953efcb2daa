"""Which files an input stands for, and how each of them is read."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from staircase_attention.checks import input_error
from staircase_attention.data.readers.archive import TextArchive
from staircase_attention.data.readers.compression import Stream
from staircase_attention.data.readers.json_lines import JsonLines
from staircase_attention.data.readers.parquet import Parquet
from staircase_attention.data.readers.plain_text import Paragraphs, WholeText
from staircase_attention.data.readers.reader import Reader
from staircase_attention.data.readers.wikipedia import FIRST_BYTES, Wikipedia

Unit = Literal["files", "paragraphs"]
COMPRESSED = (".gz", ".bz2", ".xz", ".zst", ".zip")
LINES = (".jsonl", ".ndjson")
SHORT_TAR = (".tgz", ".tbz2", ".txz", ".tzst")


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadingOptions:
    """How texts are taken out of files."""

    text_field: str = "text"
    """The field of a JSON line, or the column of a .parquet file, that holds the text."""
    text_unit: Unit = "files"
    """What a document is in plain text: a whole file, or each of its 'paragraphs', which are
    divided by blank lines."""

    def __post_init__(self) -> None:
        """Refuse what is no unit."""
        if self.text_unit not in get_args(Unit):
            rule = f"text_unit must be one of {', '.join(get_args(Unit))}"
            raise input_error(rule, repr(self.text_unit), "use for example text_unit='files'")


def kind_of(path: Path) -> str:
    """The last ending of a name that is not a compression's, in small letters.

    >>> [kind_of(Path(name)) for name in ("a/RC_2006-02.JSONL.zst", "enwik8.xz", "b.tgz")]
    ['.jsonl', '', '.tar']
    """
    name = Path(path.name.lower())
    if name.suffix in COMPRESSED:
        name = Path(name.stem)
    return ".tar" if name.suffix in SHORT_TAR else name.suffix


def reader_of(path: Path, options: ReadingOptions) -> Reader | None:
    """How a file is read, by its name; None if it is not known.

    A file without an ending, or one in .xml, is looked into: it may be a dump of Wikipedia.
    """
    kind = kind_of(path)
    if kind in LINES:
        return JsonLines(text_field=options.text_field)
    if kind == ".parquet":
        return Parquet(text_field=options.text_field)
    if kind == ".tar":
        return TextArchive()
    if kind in ("", ".xml") and _begins_as_wikipedia(path):
        return Wikipedia()
    if kind in ("", ".txt"):
        return WholeText() if options.text_unit == "files" else Paragraphs()
    return None


def _begins_as_wikipedia(path: Path) -> bool:
    with Stream(path) as stream:
        return stream.read(len(FIRST_BYTES)) == FIRST_BYTES


@dataclass(frozen=True, kw_only=True, slots=True)
class FoundFiles:
    """What an input stands for."""

    files: tuple[tuple[Path, Reader], ...]
    """Files that can be read, and how."""
    others: tuple[Path, ...] = ()
    """Files in the folder that are of other kinds and are passed over."""


def find_files(path: Path, options: ReadingOptions) -> FoundFiles:
    """The file, or those in the folder and its folders, in the order of their names.

    In a folder, hidden files are not looked at.
    """
    if path.is_dir():
        return _find_in_folder(path, options)
    if not path.exists():
        raise input_error(
            "an input must be a file or a folder", f"{path}, not there", "check the name"
        )
    reader = reader_of(path, options)
    if reader is None:
        rule = "a file must be .txt, .jsonl, .parquet, .tar or a dump of Wikipedia"
        raise input_error(rule, path, "turn it into one of these")
    return FoundFiles(files=((path, reader),))


def _find_in_folder(folder: Path, options: ReadingOptions) -> FoundFiles:
    known, others = [], []
    for path in sorted(folder.rglob("*")):
        is_hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        if is_hidden or not path.is_file():
            continue
        # A name without an ending is as often a licence as it is a text.
        reader = reader_of(path, options) if kind_of(path) else None
        if reader is None:
            others.append(path)
        else:
            known.append((path, reader))
    if not known:
        rule = "a folder must hold .txt, .jsonl, .parquet or .tar files, compressed or not"
        raise input_error(rule, f"none in {folder}", "name another folder")
    return FoundFiles(files=tuple(known), others=tuple(others))
