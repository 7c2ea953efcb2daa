"""Files and folders of text as a source of documents: text, JSON lines, Parquet, tar, Wikipedia.

Each format is a function that gives the documents of one file from any position on.
"""

import codecs
import json
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, Literal, NamedTuple, get_args

from staircase_attention.checks import check_choice, input_error
from staircase_attention.data.compression import (
    DecompressedFile,
    import_extra,
    open_decompressed,
    skip_bytes,
)
from staircase_attention.data.documents import Cursor, Document, streamed_pieces
from staircase_attention.data.wikipedia import FIRST_BYTES, articles

Unit = Literal["files", "paragraphs"]
COMPRESSED = (".gz", ".bz2", ".xz", ".zst", ".zip")
SHORT_TAR = (".tgz", ".tbz2", ".txz", ".tzst")
# Bytes of a line or a paragraph that are held at once.
LONGEST_RECORD = 1 << 25
# Rows of a .parquet file that are decoded at once.
PARQUET_ROWS = 64
# Bytes of a column that are read at once, so that a large row group is never held whole.
PARQUET_BUFFER = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadingOptions:
    """How texts are extracted from files."""

    text_field: str = "text"
    """The field of a JSON line, or the column of a .parquet file, that holds the text."""
    text_unit: Unit = "files"
    """A document of plain text: the whole file, or each of its 'paragraphs', which blank lines
    separate."""

    def __post_init__(self) -> None:
        check_choice("text_unit", self.text_unit, get_args(Unit))


class ReadPosition(NamedTuple):
    """A position in a file between two documents, or between two parts of one."""

    record: int = 0
    """Records before it: lines, rows, pages or members, depending on the format."""
    offset: int = 0
    """Bytes of content before it; in an archive, of the current member."""
    num_read: int = 0
    """Bytes of the file, as stored, that were read to get here."""


# Documents, each with the position after it; None for a record that cannot be used.
Positioned = Iterator[tuple[Document | None, ReadPosition]]


@dataclass(frozen=True, kw_only=True, slots=True)
class FileFormat:
    """How the files of one format are read."""

    read: Callable[[Path, ReadPosition, ReadingOptions], Positioned]
    """The documents of a file from a position on."""
    skipped_name: str = "texts"
    """Name of records that cannot be used."""


class TextSource:
    r"""A file, or all files of a folder: .txt, .jsonl, .parquet, .tar, compressed or not.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "a.jsonl").write_text('{"text": "One."}\n{"text": "Two."}\n')
    ...     _ = Path(folder, "b.txt").write_text("Three.")
    ...     [document.data for document, _ in TextSource(folder).documents(None)]
    [b'One.', b'Two.', b'Three.']
    """

    def __init__(
        self,
        path: str | Path,
        *,
        options: ReadingOptions | None = None,
        split: str | None = None,
    ) -> None:
        """Find the files and read the beginning of each.

        Args:
            path: a file or a folder.
            options: how texts are extracted from files.
            split: the split of all documents; None to choose by their hashes.
        """
        self.name, self.split = str(path), split
        self.options = options or ReadingOptions()
        self.parameters: Mapping[str, Any] = asdict(self.options) | {"split": split}
        found, self.others = _find_files(Path(path), self.options)
        self.files: Sequence[Path] = tuple(found)
        """In the order in which they are read."""
        self._formats = tuple(found.values())
        for file, file_format in found.items():
            # A file that cannot be read is refused before any work is done.
            next(file_format.read(file, ReadPosition(), self.options), None)
        self._sizes = [file.stat().st_size for file in self.files]
        self.total_bytes = sum(self._sizes)

    def documents(self, cursor: Cursor | None) -> Iterator[tuple[Document, Cursor]]:
        """The documents after a cursor, file by file."""
        first, start, skipped = 0, ReadPosition(), dict[str, int]()
        if cursor is not None:
            first = cursor.place["file"]
            start = ReadPosition(*cursor.place["in_file"])
            skipped = dict(cursor.skipped)
        num_before = sum(self._sizes[:first])
        for number in range(first, len(self.files)):
            path, file_format = self.files[number], self._formats[number]
            for document, position in file_format.read(path, start, self.options):
                if document is None:
                    key = f"{file_format.skipped_name} in {path.name}"
                    skipped = skipped | {key: skipped.get(key, 0) + 1}
                    # Without text it only reports a position.
                    document = Document(text="")
                if self.split is not None:
                    document = replace(document, split=self.split)
                num_read = num_before + min(position.num_read, self._sizes[number])
                place = {"file": number, "in_file": list(position)}
                yield document, Cursor(place=place, num_read=num_read, skipped=skipped)
            num_before += self._sizes[number]
            start = ReadPosition()


def _find_files(
    path: Path, options: ReadingOptions
) -> tuple[dict[Path, FileFormat], tuple[Path, ...]]:
    """The file, or those of a folder by name, with their formats; and files of other kinds."""
    if not path.exists():
        rule, received = "an input must be a file or a folder", f"{path}, not there"
        raise input_error(rule, received, "check the name")
    known, others = dict[Path, FileFormat](), []
    for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
        is_hidden = any(part.startswith(".") for part in file.relative_to(path).parts)
        if is_hidden or not file.is_file():
            continue
        # In a folder, a name without a suffix is as often a licence as it is a text.
        file_format = _format_of(file, options) if _suffix(file) or file == path else None
        if file_format is None:
            others.append(file)
        else:
            known[file] = file_format
    if not known:
        rule = "an input must be or hold .txt, .jsonl, .parquet, .tar or a Wikipedia dump"
        raise input_error(rule, path, "name another, or convert it to one of these")
    return known, tuple(others)


def _suffix(path: Path) -> str:
    """The last suffix of a name that does not name a compression.

    >>> [_suffix(Path(name)) for name in ("a/RC_2006-02.JSONL.zst", "enwik8.xz", "b.tgz")]
    ['.jsonl', '', '.tar']
    """
    name = Path(path.name.lower())
    if name.suffix in COMPRESSED:
        name = Path(name.stem)
    return ".tar" if name.suffix in SHORT_TAR else name.suffix


def _format_of(path: Path, options: ReadingOptions) -> FileFormat | None:
    """The format of a file, by its name; None if it is unknown.

    A file without a suffix, or an .xml file, is a Wikipedia dump if it starts like one.
    """
    suffix = _suffix(path)
    if suffix in ("", ".xml"):
        with open_decompressed(path) as file:
            if file.read(len(FIRST_BYTES)) == FIRST_BYTES:
                return WIKIPEDIA
    if suffix in ("", ".txt"):
        return TEXT if options.text_unit == "files" else PARAGRAPHS
    return {
        ".jsonl": JSON_LINES,
        ".ndjson": JSON_LINES,
        ".parquet": PARQUET,
        ".tar": TAR,
    }.get(suffix)


def _read_text(path: Path, start: ReadPosition, options: ReadingOptions) -> Positioned:
    """One document per file, in parts where it is long."""
    if start.record:
        return
    with open_decompressed(path) as file:
        file.skip_to(start.offset)
        offset = start.offset
        for data, is_last in streamed_pieces(file.read):
            offset += len(data)
            after = ReadPosition(int(is_last), offset, file.num_stored_read)
            yield Document(text=data, is_continued=not is_last), after


def _read_records(
    texts: Callable[[DecompressedFile, ReadingOptions], Iterator[bytes | str | None]],
    path: Path,
    start: ReadPosition,
    options: ReadingOptions,
) -> Positioned:
    """One document per record; `texts` gives None for a record that cannot be used."""
    with open_decompressed(path) as file:
        file.skip_to(start.offset)
        for record, text in enumerate(texts(file, options), start.record + 1):
            after = ReadPosition(record, file.tell(), file.num_stored_read)
            yield None if text is None else Document(text=text), after


def _paragraphs(file: DecompressedFile, options: ReadingOptions) -> Iterator[bytes]:
    """Runs of lines that are not blank; one of over LONGEST_RECORD bytes is cut into several."""
    lines: list[bytes] = []
    size = 0
    while True:
        line = file.readline(LONGEST_RECORD)
        is_end = not line or line.isspace()
        if not is_end:
            lines.append(line)
            size += len(line)
        if lines and (is_end or size >= LONGEST_RECORD):
            yield b"".join(lines).rstrip(b"\r\n")
            lines, size = [], 0
        if not line:
            return


def _json_texts(file: DecompressedFile, options: ReadingOptions) -> Iterator[str | None]:
    """The text of each line; None for a broken line, or one of over LONGEST_RECORD bytes."""
    while line := file.readline(LONGEST_RECORD + 1):
        rest = line
        while len(rest) > LONGEST_RECORD and not rest.endswith(b"\n"):
            rest = file.readline(LONGEST_RECORD + 1)
        if len(line) > LONGEST_RECORD:
            yield None
        elif not line.isspace():
            yield _json_text(line, options.text_field)


def _json_text(line: bytes, field: str) -> str | None:
    try:
        # Some programs start a file with a byte order mark, which is not part of its content.
        return _flattened(json.loads(line.removeprefix(codecs.BOM_UTF8).decode())[field])
    except (ValueError, LookupError, TypeError, RecursionError):
        return None


def _flattened(value: object, separators: tuple[str, ...] = ("\n", ": ")) -> str | None:
    r"""A string as it is; a list as lines, and a list in a list joined by ': '. None for others.

    >>> _flattened([["Ann", "Hello"], "and so on"])
    'Ann: Hello\nand so on'
    """
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or not separators:
        return None
    items = [_flattened(item, separators[1:]) for item in value]
    return None if None in items else separators[0].join(map(str, items))


def _read_parquet(path: Path, start: ReadPosition, options: ReadingOptions) -> Positioned:
    """One document per row."""
    with _open_parquet(path, options) as file:
        num_rows, num_bytes = file.metadata.num_rows, path.stat().st_size
        for record, value in enumerate(_column(file, start.record, options), start.record + 1):
            text = _flattened(value)
            after = ReadPosition(record, 0, num_bytes * record // num_rows)
            yield None if text is None else Document(text=text), after


def _open_parquet(path: Path, options: ReadingOptions) -> Any:  # noqa: ANN401
    parquet = import_extra("pyarrow.parquet", needed_for="a .parquet file")
    try:
        file = parquet.ParquetFile(path, buffer_size=PARQUET_BUFFER, pre_buffer=False)
    except (OSError, ValueError) as error:
        rule, received = "a .parquet file must be whole", f"{path} ({error})"
        raise input_error(rule, received, "fetch it again, or leave it out") from error
    if options.text_field not in file.schema_arrow.names:
        file.close()
        rule = f"the text must be in the column {options.text_field!r} of {path}"
        received = ", ".join(map(repr, file.schema_arrow.names))
        raise input_error(rule, received, "name its column with text_field")
    return file


def _column(file: Any, first: int, options: ReadingOptions) -> Iterator[Any]:  # noqa: ANN401
    """The values of the text column from row `first` on. Row groups before it are not read."""
    sizes = [file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)]
    groups = list(range(len(sizes)))
    while groups and first >= sizes[groups[0]]:
        first -= sizes[groups.pop(0)]
    for batch in file.iter_batches(PARQUET_ROWS, row_groups=groups, columns=[options.text_field]):
        yield from batch.column(0).slice(first).to_pylist()
        first = max(0, first - len(batch))


def _read_tar(path: Path, start: ReadPosition, options: ReadingOptions) -> Positioned:
    """One document per member, in the order of the archive."""
    with open_decompressed(path) as file:
        try:
            yield from _members(file, start)
        except tarfile.TarError as error:
            rule, received = "an archive must be whole", f"{path} ({error})"
            raise input_error(rule, received, "fetch it again, or leave it out") from error


def _members(file: DecompressedFile, start: ReadPosition) -> Positioned:
    # "r|" reads front to back and never seeks back: the archive may be compressed.
    with tarfile.open(fileobj=file, mode="r|") as archive:
        for record, member in enumerate(archive):
            # The library would remember every member.
            archive.members = []  # type: ignore[attr-defined]
            if record < start.record or not member.isfile():
                continue
            if not _is_text(member.name):
                yield None, ReadPosition(record + 1, 0, file.num_stored_read)
                continue
            content = archive.extractfile(member)
            assert content is not None
            # Reading may resume inside the first member.
            offset = start.offset if record == start.record else 0
            skip_bytes(content, offset)
            for data, is_last in streamed_pieces(content.read):
                offset += len(data)
                at = (record + 1, 0) if is_last else (record, offset)
                after = ReadPosition(*at, file.num_stored_read)
                yield Document(text=data, is_continued=not is_last), after


def _is_text(name: str) -> bool:
    """Whether a member of an archive is a document, by its name.

    >>> _is_text("novels/Woolf_Night_1919.txt"), _is_text("novels/.hidden"), _is_text("cover.jpg")
    (True, False, False)
    """
    last = PurePosixPath(name)
    return not last.name.startswith(".") and last.suffix.lower() in ("", ".txt")


TEXT = FileFormat(read=_read_text)
PARAGRAPHS = FileFormat(read=partial(_read_records, _paragraphs))
JSON_LINES = FileFormat(read=partial(_read_records, _json_texts), skipped_name="broken lines")
WIKIPEDIA = FileFormat(
    read=partial(_read_records, lambda file, _: articles(file)),
    skipped_name="redirects and pages without text",
)
TAR = FileFormat(read=_read_tar, skipped_name="members that are not text")
PARQUET = FileFormat(read=_read_parquet, skipped_name="rows without text")
