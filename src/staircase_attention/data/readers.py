"""Files and folders as sources of documents: text, JSON lines, Parquet, tar; and Enwik8.

Each format has a function that gives the documents of one file. Reading resumes by skipping them.
In place of a document comes, in words, what something is that cannot be used.
"""

import codecs
import json
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import IO, Any, Literal

from staircase_attention.checks import InputError, check_fields, import_extra, input_error
from staircase_attention.data import compression
from staircase_attention.data.documents import LONGEST_PIECE, Cursor, Document, pieces

Unit = Literal["files", "paragraphs"]
COMPRESSED = (".gz", ".bz2", ".xz", ".zst", ".zip")
SHORT_TAR = (".tgz", ".tbz2", ".txz", ".tzst")
# Plain text by its suffix: prose, markup and source code.
PROSE = (".txt", ".md", ".markdown", ".rst", ".tex", ".org")
CODE = (
    *(".py", ".c", ".h", ".cc", ".cpp", ".hpp", ".cu", ".js", ".ts", ".java", ".go", ".rs"),
    *(".rb", ".php", ".cs", ".swift", ".kt", ".lua", ".jl", ".hs", ".sh", ".sql", ".html", ".css"),
)
KNOWN = (*PROSE, *CODE, ".jsonl", ".ndjson", ".parquet", ".tar")
# Between the turns of a dialogue, as `staircase chat` expects them.
TURN_SEPARATOR = "\n\n\n"
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
    allow_damaged: bool = False
    """Whether a damaged file is read up to the damage; else it is refused."""

    def __post_init__(self) -> None:
        check_fields(self)


class TextSource:
    """A file, or all files of a folder: .txt, .jsonl, .parquet, .tar, compressed or not."""

    def __init__(
        self, path: str | Path, *, options: ReadingOptions | None = None, split: str | None = None
    ) -> None:
        """Find the files and read the beginning of each.

        `split` is that of all documents; None chooses by their hashes.
        """
        self.name, self.split = str(path), split
        self.options = options or ReadingOptions()
        parameters = asdict(self.options) | {"split": split}
        if not self.options.allow_damaged:
            # Corpora were prepared before there was a choice.
            del parameters["allow_damaged"]
        self.parameters: Mapping[str, Any] = parameters
        self.files: Sequence[Path]
        """In the order in which they are read."""
        self.files, self.others = _find_files(Path(path))
        self.not_utf8: list[Path] = []
        """Files whose beginning is not UTF-8: it is used as it is, byte by byte."""
        for file in self.files:
            # A file that cannot be read is refused before any work is done.
            first, _ = next(_documents_of(file, self.options), ("", 0))
            text = first.text if isinstance(first, Document) else ""
            if isinstance(text, bytes) and text.decode(errors="ignore").encode() != text:
                self.not_utf8.append(file)
        self._sizes = [file.stat().st_size for file in self.files]
        self.total_bytes = sum(self._sizes)

    def share(self, number: int, count: int) -> "TextSource":
        """Some of the files: share `number` of 0 to `count` - 1."""
        found = copy(self)
        mine = slice(*(len(self.files) * end // count for end in (number, number + 1)))
        found.files, found._sizes = self.files[mine], self._sizes[mine]
        found.total_bytes = sum(found._sizes)
        return found

    def documents(self, cursor: Cursor | None) -> Iterator[tuple[Document, Cursor]]:
        """The documents after a cursor, file by file."""
        place = {"file": 0, "record": 0} if cursor is None else cursor.place
        num_before, skipped = place["record"], dict(cursor.skipped if cursor else {})
        for number in range(place["file"], len(self.files)):
            path, first_byte = self.files[number], sum(self._sizes[:number])
            found = enumerate(_documents_of(path, self.options), start=1)
            for index, (document, num_read) in islice(found, num_before, None):
                if isinstance(document, str):
                    key = f"{document} in {path.name}"
                    skipped = skipped | {key: skipped.get(key, 0) + 1}
                    # Without text it only reports a position.
                    document = Document(text="")
                document = replace(document, split=self.split)
                num_read = first_byte + min(num_read, self._sizes[number])
                place = {"file": number, "record": index}
                yield document, Cursor(place=place, num_read=num_read, skipped=skipped)
            num_before = 0


class SplitFile:
    """A file that holds the splits one after another, one document each."""

    def __init__(self, path: str | Path, split_bytes: Mapping[str, int]) -> None:
        self.name, self._path, self._split_bytes = str(path), Path(path), split_bytes
        if not self._path.is_file():
            raise input_error("an input must be a file", f"{path}, which is none", "check the name")
        self.parameters: Mapping[str, Any] = {"split_bytes": dict(split_bytes)}
        self.files: Sequence[Path] = (self._path,)
        self.total_bytes = self._path.stat().st_size

    def documents(self, cursor: Cursor | None) -> Iterator[tuple[Document, Cursor]]:
        """Parts of each split, up to its last byte."""
        number, num_before = 0, 0 if cursor is None else cursor.place["part"]
        with compression.open_decompressed(self._path) as file:
            for split, num_left in self._split_bytes.items():
                while num_left:
                    data = file.read(min(LONGEST_PIECE, num_left))
                    num_left -= len(data)
                    number += 1
                    if number > num_before:
                        after = Cursor(place={"part": number}, num_read=file.raw.num_stored_read)
                        yield Document(text=data, split=split, is_continued=num_left > 0), after


def _find_files(path: Path) -> tuple[list[Path], list[Path]]:
    """The file, or those of a folder by name; and files of other kinds."""
    if not path.exists():
        rule, received = "an input must be a file or a folder", f"{path}, not there"
        raise input_error(rule, received, "check the name")
    known, others = list[Path](), list[Path]()
    for file in _files_below(path, set()) if path.is_dir() else [path]:
        suffix = _suffix(file) if file.is_file() else None
        # In a folder, a name without a suffix is as often a licence as it is a text.
        is_known = suffix in KNOWN or (suffix == "" and file == path)
        (known if is_known else others).append(file)
    if not known:
        rule = "an input must be or hold .txt, .md, code, .jsonl, .parquet or .tar"
        raise input_error(rule, path, "name another, or convert it to one of these")
    # A link may lead to a file that is among them.
    return [*{file.resolve(): file for file in known}.values()], others


def _files_below(folder: Path, seen: set[Path]) -> Iterator[Path]:
    """The files of a folder that are not hidden, by name. Links to folders are followed."""
    # A folder that is linked to is read once: a link may lead back to where it is.
    if (real := folder.resolve()) in seen:
        return
    seen.add(real)
    for path in sorted(path for path in folder.iterdir() if _is_visible(path.name)):
        if path.is_dir():
            yield from _files_below(path, seen)
        else:
            yield path


def _is_visible(name: str) -> bool:
    return not name.startswith(".")


def _suffix(path: Path) -> str:
    """The last suffix of a name that does not name a compression: .jsonl of RC_2006.JSONL.zst."""
    name = Path(path.name.lower())
    if name.suffix in COMPRESSED:
        held = Path(compression.zipped_name(path).lower())
        name = held if held.suffix else Path(name.stem)
    return ".tar" if name.suffix in SHORT_TAR else name.suffix


def _documents_of(path: Path, options: ReadingOptions) -> Iterator[tuple[Document | str, int]]:
    """The documents of a file, each with how many bytes of it, as stored, were read for it."""
    read, num_read = _rows if _suffix(path) == ".parquet" else _content, 0
    try:
        for document, num_read in read(path, options):
            yield document, num_read
    except compression.DamagedFileError as damage:
        if not options.allow_damaged:
            raise
        yield f"damage ({damage.why})", num_read


def _content(path: Path, options: ReadingOptions) -> Iterator[tuple[Document | str, int]]:
    """The documents of a file that is read from front to back."""
    suffix = _suffix(path)
    with compression.open_decompressed(path, allow_damaged=options.allow_damaged) as file:
        found: Iterator[Document | str]
        if suffix in (".jsonl", ".ndjson"):
            found = _json_lines(file, options)
        elif suffix == ".tar":
            found = _members(file)
        else:
            found = _text(file, options.text_unit)
        for document in found:
            yield document, file.raw.num_stored_read
        if file.raw.damage is not None:
            raise compression.DamagedFileError(path, file.raw.damage)


def _text(file: IO[bytes], unit: Unit) -> Iterator[Document]:
    """A plain text as one document, in parts where it is long; or its paragraphs."""
    # Some programs start a file with a byte order mark, which is not part of its content.
    if file.peek(3).startswith(codecs.BOM_UTF8):  # type: ignore[attr-defined]
        file.read(3)
    if unit == "paragraphs":
        yield from _paragraphs(file)
        return
    for data, is_last in pieces(file.read):
        yield Document(text=data, is_continued=not is_last)


def _paragraphs(file: IO[bytes]) -> Iterator[Document]:
    """Runs of lines that are not blank; one of over LONGEST_LINE bytes is cut into several."""
    lines, size = list[bytes](), 0
    while True:
        line = file.readline(compression.LONGEST_LINE)
        is_end = not line or line.isspace()
        if not is_end:
            lines.append(line)
            size += len(line)
        if lines and (is_end or size >= compression.LONGEST_LINE):
            yield Document(text=b"".join(lines).rstrip(b"\r\n"))
            lines, size = [], 0
        if not line:
            return


def _json_lines(file: IO[bytes], options: ReadingOptions) -> Iterator[Document | str]:
    for line in compression.whole_lines(file):
        if line is None:
            yield compression.OVERLONG
            continue
        try:
            # As above; files joined end to end have such marks inside.
            fields = json.loads(line.removeprefix(codecs.BOM_UTF8).decode())
            text = _dialogue(fields, options) or _flattened(fields[options.text_field])
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            text = "" if line.isspace() else None
        yield "broken lines" if text is None else Document(text=text)


def _dialogue(fields: Mapping[str, Any], options: ReadingOptions) -> str | None:
    """The turns of a dialogue without its speakers; None for a record that is none."""
    names = [name for name in ("turns", "messages") if name in fields]
    if options.text_field in fields or not names:
        return None
    turns = fields[names[0]]
    texts = [turn["content"] if isinstance(turn, dict) else turn[1] for turn in turns]
    return TURN_SEPARATOR.join(text.strip() for text in texts)


def _flattened(value: object, separators: tuple[str, ...] = ("\n", ": ")) -> str | None:
    """A string as it is; a list as lines, and a list in a list joined by ': '. None for others."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or not separators:
        return None
    items = [_flattened(item, separators[1:]) for item in value]
    return None if None in items else separators[0].join(map(str, items))


def _rows(path: Path, options: ReadingOptions) -> Iterator[tuple[Document | str, int]]:
    """The values of the text column."""
    if compression.compression_of(path) is not None:
        raise input_error("a .parquet file must not be compressed as a whole", path, "unpack it")
    parquet = import_extra("pyarrow.parquet", needed_for="a .parquet file")
    num_bytes, num_rows = path.stat().st_size, 0
    try:
        how = {"pre_buffer": False, "page_checksum_verification": True}
        with parquet.ParquetFile(path, buffer_size=PARQUET_BUFFER, **how) as file:
            if options.text_field not in file.schema_arrow.names:
                rule = f"the text must be in the column {options.text_field!r} of {path}"
                received = ", ".join(map(repr, file.schema_arrow.names))
                raise input_error(rule, received, "name its column by --text-field (text_field)")
            bytes_each = num_bytes / max(file.metadata.num_rows, 1)
            for batch in file.iter_batches(PARQUET_ROWS, columns=[options.text_field]):
                for text in map(_flattened, batch.column(0).to_pylist()):
                    num_rows += 1
                    document = "rows without text" if text is None else Document(text=text)
                    yield document, int(bytes_each * num_rows)
    except (*compression.DAMAGE, ValueError) as error:
        # The column is not there; or the system failed, not the file.
        if isinstance(error, InputError) or getattr(error, "errno", None) is not None:
            raise
        why = f"{error}; what follows row {num_rows:,} is lost"
        raise compression.DamagedFileError(path, why) from error


class _Member(tarfile.TarInfo):
    """A member of an archive. The library takes a damaged header for the end of the archive."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> "_Member":
        found = super().frombuf(buf, encoding, errors)
        # Long names and the like, which the library holds whole.
        if not (found.isfile() or found.islnk()) and found.size > compression.BLOCK_BYTES:
            raise tarfile.ReadError(f"a header of {found.size:,} bytes")
        return found

    @classmethod
    def fromtarfile(cls, archive: tarfile.TarFile) -> "_Member":
        try:
            return super().fromtarfile(archive)
        except (tarfile.InvalidHeaderError, tarfile.TruncatedHeaderError) as error:  # type: ignore[attr-defined]
            raise tarfile.ReadError(str(error)) from error


def _members(file: compression.DecompressedFile) -> Iterator[Document | str]:
    """One document per member of an archive, in its order."""
    try:
        # "r|" reads front to back and never seeks back: the archive may be compressed.
        with tarfile.open(fileobj=file, mode="r|", tarinfo=_Member) as archive:
            for member in archive:
                # The library would remember every member.
                archive.members = []  # type: ignore[attr-defined]
                if not member.isfile():
                    continue
                # By its name, as in a folder: neither hidden nor a LICENSE.
                path = PurePosixPath(member.name)
                is_visible = all(map(_is_visible, path.parts))
                # A sparse one may be of any size: its zeros are not stored.
                if not is_visible or member.issparse() or path.suffix.lower() not in PROSE + CODE:
                    yield "members that are not text"
                elif content := archive.extractfile(member):
                    yield from _text(content, "files")
    except tarfile.TarError as error:
        why = f"{error}, at byte {file.raw.num_stored_read:,} as stored"
        raise compression.DamagedFileError(file.name, why) from error
