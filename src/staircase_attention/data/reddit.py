"""Reddit: Pushshift dumps rebuilt into threads, and written as paths that end in a comment.

The comments of all dumps are stored in partitions: every thread is whole within one file. A
partition is an Arrow stream to which batches are appended. `read.json` records how far each dump
was read, and how long every partition was then. After a kill, partitions are cut back to these
lengths and reading resumes, so that every line is stored exactly once.
"""

import codecs
import hashlib
import html
import json
import math
import os
import re
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor
from copy import copy
from dataclasses import asdict, dataclass, field, replace
from enum import IntEnum
from functools import cached_property, partial
from itertools import groupby, islice
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from staircase_attention.checks import check_fields, check_integer, import_extra, input_error
from staircase_attention.cores import available_cores, in_order, worker_pool
from staircase_attention.data import compression
from staircase_attention.data.documents import Cursor, Document, HeldOut
from staircase_attention.display import Display
from staircase_attention.files import appending, locked, read_json, write_json

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]
else:
    pa = import_extra("pyarrow", needed_for="Reddit")

Gap = Literal["drop", "cut", "placeholder"]

# Changes when files in a work folder get another meaning.
FORMAT = 4
FEWEST_PARTITIONS, MOST_PARTITIONS = 16, 1 << 14
# Comments in a partition, if the estimate of their total size is right. It is held in memory.
PARTITION_BYTES = 32 << 20
# Estimated bytes of comments per byte of a dump.
SIZE_IF_PLAIN, SIZE_IF_COMPRESSED = 0.5, 3.0
# Bytes of comments below which another process takes longer to start than it saves.
WORTH_A_WORKER = 4 << 20
# Bytes at the beginning of a dump that identify it.
FINGERPRINT_BYTES = 1 << 16
# Lines that are parsed at a time.
BLOCK_BYTES = 1 << 20
# Comments that are held before they are stored.
BUFFER_BYTES = 128 << 20
# Time after which they are stored in any case: the most work that a kill can cost.
COMMIT_SECONDS = 10.0
GOLDEN_RATIO = np.uint64(0x9E3779B97F4A7C15)
HALF = np.uint64(32)

# Seconds; a later time is invalid.
LATEST = 1 << 53
# Up to 36^12 < 2^63. With a leading zero two ids would have one number.
USUAL_ID = re.compile(r"[1-9a-z][0-9a-z]{0,11}")
DELETED_BODIES = frozenset({"[deleted]", "[deleted by user]"})
REMOVED_BODIES = frozenset({"[removed]", "[removed by reddit]", "[ removed by reddit ]"})
# Well-known bots, and names such as `RemindMeBot`, `gifv-bot` and `HelperBot_2`, but neither
# `abbot` nor `robotics_fan`.
BOTS = (
    "(?i:AutoModerator|autotldr|autowikibot|Decronym|imguralbumbot|sneakpeekbot|TotesMessenger"
    "|totes_meta_bot|TweetPoster|WikiTextBot)"
    r"|.*(?:[-_][Bb]ot|[a-z0-9]Bot|BOT)[-_]?\d*"
)
FEWEST_CHARACTERS, MOST_CHARACTERS_WITHOUT_SPACE = 5, 2_048
LINK = re.compile(r"https?://|\bwww\.", re.IGNORECASE)
# The semicolon is required: `&copy=1` occurs in many URLs.
ENTITY = re.compile(r"&(?:#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]{1,30});")
BLANKS_AT_LINE_END = re.compile(r"[ \t\u00a0]+\n")
BLANK_LINES = re.compile(r"\n{3,}")
# Control characters except tab and newline, and the invisible filler of Reddit's editor.
UNWANTED = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\u200b\ufeff]+")
# No cleaned comment contains three newlines in a row: a document can be split into its comments.
SEPARATOR = "\n\n\n"
# The place of a comment that is in no file, or not in the same thread.
MISSING = -1
REMOVED_TEXT, MISSING_TEXT = "[removed]", "[missing]"


class Status(IntEnum):
    """Whether a comment has a text, and if not, why.

    The numbers are stored on disk, and in lower case the names are those of the counts.
    """

    LIVING, DELETED, REMOVED, EMPTY, BOTS, FILTERED = range(6)


@dataclass(frozen=True, kw_only=True, slots=True)
class RedditOptions:
    """What an example is: a comment that has a text, with all comments that lead to it."""

    form: Literal["paths", "leaves"] = "paths"
    """'paths': every example, as in the paper; a comment is repeated for each comment below it.
    'leaves': only those that are not the beginning of another."""
    removed: Gap = "drop"
    """What to do below a comment without a text (deleted, removed, empty, by a bot, or filtered):
    'drop' the comments below it, since their paths are not whole; 'cut' the path, which then begins
    below the gap; or write a 'placeholder', [removed], in its place."""
    missing: Gap = "drop"
    """The same for a comment whose parent is in no file; its placeholder is [missing]."""
    maximum_depth: int | None = None
    """Comments in the longest path; deeper comments are not examples. None for no limit."""
    bots: str | None = BOTS
    """A regular expression for the names of authors to leave out; None for nobody."""
    filters: Literal["none", "roller"] = "none"
    """'roller' leaves out texts by the rules of Roller et al. (2020), which the paper cites, that
    need only the text. Not here: at most 128 BPE tokens, which needs their tokeniser, and English
    subreddits, which needs their list. Their limit on depth is `maximum_depth=7`."""
    held_out: HeldOut = field(default_factory=lambda: HeldOut(valid=0.01, test=0.01))
    """Fractions of the threads in valid and test."""

    def __post_init__(self) -> None:
        check_fields(self, examples={"maximum_depth": 7})
        try:
            re.compile(self.bots or "")
        except re.error as error:
            received, remedy = f"{self.bots!r} ({error})", "escape special characters"
            raise input_error("bots must be a regular expression", received, remedy) from error

    def clean(self, author: str, body: str) -> tuple[Status, str | None]:
        """The status of a comment, and its text, which is None unless the status is LIVING.

        >>> RedditOptions().clean("someone", "1 &lt; 2 &amp;amp; so on  ")
        (<Status.LIVING: 0>, '1 < 2 & so on')
        >>> RedditOptions().clean("AutoModerator", "Welcome!")
        (<Status.BOTS: 4>, None)
        """
        text = clean_text(body)
        marker = text.casefold() if text.endswith("]") else text
        if not text:
            return Status.EMPTY, None
        if marker in DELETED_BODIES:
            return Status.DELETED, None
        if marker in REMOVED_BODIES:
            return Status.REMOVED, None
        if self.bots is not None and re.fullmatch(self.bots, author):
            return Status.BOTS, None
        if self.filters == "roller" and not is_allowed_by_roller(text):
            return Status.FILTERED, None
        return Status.LIVING, text

    def split_of(self, thread: int) -> str:
        """The split of a thread, given the number of its post.

        A thread keeps its split when dumps are added. If `valid` grows, it takes threads from train
        only: valid and test are taken from opposite ends.
        """
        digest = hashlib.blake2b(f"0:{thread}".encode(), digest_size=6).digest()
        place = int.from_bytes(digest) / 2**48
        if place < self.held_out.valid:
            return "valid"
        return "test" if place >= 1 - self.held_out.test else "train"


def is_allowed_by_roller(text: str) -> bool:
    """At least 5 characters, no URL, ASCII first, a space if there are over 2,048 characters.

    >>> is_allowed_by_roller("Well said."), is_allowed_by_roller("see http://example.org")
    (True, False)
    """
    return (
        len(text) >= FEWEST_CHARACTERS
        and text[0].isascii()
        and LINK.search(text) is None
        and (len(text) <= MOST_CHARACTERS_WITHOUT_SPACE or any(map(str.isspace, text)))
    )


def clean_text(body: str) -> str:
    r"""A body as its readers saw it, with at most one blank line between others.

    Reddit escapes `&`, `<` and `>` once. Entities that are left after that, `&nbsp;` for example,
    were written by the author, and the page showed them decoded. So entities are decoded twice.

    >>> clean_text("&gt; quoted\r\n\r\n\r\nSo it is.&amp;#x200B; \r\n")
    '> quoted\n\nSo it is.'
    """
    text = body
    if "&" in text:
        for _ in range(2):
            text = ENTITY.sub(lambda entity: html.unescape(entity[0]), text)
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    # Most texts need no substitution, and this check costs a tenth of one.
    if not text.replace("\n", "").isprintable():
        text = UNWANTED.sub("", text)
    if "\n" in text:
        text = BLANK_LINES.sub("\n\n", BLANKS_AT_LINE_END.sub("\n", text))
    return text.strip()


class Comment(NamedTuple):
    """A row of a partition."""

    thread: int  # The id of the post, as a number.
    id: int
    parent: int | None  # None: it answers the post.
    created: int  # Seconds since 1970.
    status: int
    text: str | None  # None unless the status is LIVING.


KINDS = (*3 * (pa.uint64(),), pa.int64(), pa.uint8(), pa.large_string())  # In this order.
SCHEMA = pa.schema(zip(Comment._fields, KINDS, strict=True))


@dataclass(frozen=True, kw_only=True, slots=True)
class DumpPosition:
    """How far a dump has been read."""

    lines: Mapping[str, int] = field(default_factory=dict)
    """Every line once: 'comments', 'blank', 'overlong' or 'broken'."""
    num_stored: int = 0
    """Bytes of the file as stored, approximately."""
    is_done: bool = False
    damage: str | None = None
    """Why the rest of the file was not read."""


# Lines, of which an overlong one is None, and the position after them, without their counts.
Batch = tuple[list[bytes | None], DumpPosition]


def parse_lines(batch: Batch, options: RedditOptions) -> tuple[DumpPosition, pa.RecordBatch]:
    """The position after a batch, with its lines by kind, and the comments in it."""
    lines, after = batch
    parsed = ["overlong" if line is None else parse_comment(line, options) for line in lines]
    comments = [comment for comment in parsed if isinstance(comment, Comment)]
    counts = Counter(flaw for flaw in parsed if isinstance(flaw, str))
    counts["comments"] = len(comments)
    columns = zip(*comments, strict=True) if comments else [()] * len(SCHEMA)
    arrays = [pa.array(column, kind) for column, kind in zip(columns, SCHEMA.types, strict=True)]
    return replace(after, lines=dict(counts)), pa.record_batch(arrays, schema=SCHEMA)


def parse_comment(line: bytes, options: RedditOptions) -> Comment | str:
    """A comment; or 'blank', or else 'broken', for a line that has none.

    >>> parse_comment(b'{"id": "c7", "link_id": "t3_x", "parent_id": "t1_c2", "author": "someone",'
    ...     b'"body": "Yes", "created_utc": "1134365188", "score": 3}', RedditOptions()).text
    'Yes'
    >>> parse_comment(b'{"id": "c7", "link_', RedditOptions())
    'broken'
    """
    if not line or line.isspace():
        return "blank"
    try:
        values = json.loads(line.removeprefix(codecs.BOM_UTF8).decode())
        link_id = values["link_id"].removeprefix("t3_")
        body = "" if values["body"] is None else values["body"]
        # JSON can encode lone surrogates, which UTF-8 cannot.
        text = body.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        seconds = int(float(values["created_utc"]))
        if isinstance(values["created_utc"], bool) or not 0 <= seconds < LATEST:
            return "broken"
        return Comment(
            number_of(link_id),
            number_of(values["id"].removeprefix("t1_")),
            _parent(values["parent_id"], link_id),
            seconds,
            *options.clean(str(values.get("author") or ""), text),
        )
    # Fields of other types lack the methods of strings.
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError, RecursionError):
        return "broken"


def _parent(value: Any, link_id: str) -> int | None:  # noqa: ANN401
    """Pushshift's later interface gives null for the post and a number for a comment."""
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return number_of(np.base_repr(value, 36).lower())
    # A comment and a post may have the same digits: only the prefix tells them apart.
    bare = "t3_" if value is None else value.removeprefix("t1_")
    return None if bare.startswith("t3_") or value == link_id else number_of(bare)


def number_of(identity: str) -> int:
    """An id as a number of at least 1. Ids count up in base 36: later ids have larger numbers.

    Any other string is hashed to a 64-bit number with the highest bit set.

    >>> number_of("c13"), number_of("C13") > 2**63
    (15591, True)
    """
    if not identity:
        raise ValueError("an id is empty")
    if USUAL_ID.fullmatch(identity):
        return int(identity, 36)
    digest = hashlib.blake2b(identity.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest) | 1 << 63


def threads(comments: pa.Table) -> Iterator[list[Comment]]:
    """The comments of each thread by time and id. Of several with one id, the first is kept."""
    numbered = comments.append_column("row", pa.array(np.arange(len(comments))))
    firsts = numbered.group_by(["thread", "id"], use_threads=False).aggregate([("row", "min")])
    order = [(name, "ascending") for name in ("thread", "created", "id")]
    rows = comments.take(firsts["row_min"]).sort_by(order)
    columns = [rows[name].to_pylist() for name in Comment._fields]
    for _, group in groupby(map(Comment._make, zip(*columns, strict=True)), attrgetter("thread")):
        yield list(group)


def texts_of(rows: Sequence[Comment], options: RedditOptions) -> tuple[list[str], Counter[str]]:
    """The texts of a thread's documents, and its comments that are not in any, by the reason.

    A parent must be in the same thread. In the oldest dumps some ids were given to later comments
    again: joined by id alone, they would connect two threads and answer what was written later.
    """
    places = {row.id: place for place, row in enumerate(rows)}
    # Where the parents are; None is the post.
    parents = [row.parent and places.get(row.parent, MISSING) for row in rows]
    answers: defaultdict[int | None, list[int]] = defaultdict(list)
    for place, parent in enumerate(parents):
        answers[parent].append(place)
    # What comes before a comment in its document; None at the start.
    before = dict[int, int | None]()
    deepest = options.maximum_depth or len(rows) + 1
    # Comments in a path; without end where it is dropped.
    depths: dict[int | None, float] = {None: 0, MISSING: 1}
    # From the post downwards, which reaches no comment in a cycle.
    examples, reached = list[int](), answers[None] + answers[MISSING]
    for place in reached:
        reached += answers[place]
        parent = parents[place]
        gap: Gap | None = None
        if parent == MISSING:
            gap = options.missing
        elif parent is not None and rows[parent].text is None:
            gap = options.removed
        before[place] = None if gap == "cut" else parent
        depths[place] = math.inf if gap == "drop" else depths[before[place]] + 1
        if rows[place].text is not None and depths[place] <= deepest:
            examples.append(place)
    counts = Counter(Status(row.status).name.lower() for row in rows if row.text is None)
    counts["no whole path"] = sum(row.text is not None for row in rows) - len(examples)
    inner = set[int]()
    for place in examples if options.form == "leaves" else ():
        above = before[place]
        while above is not None and above not in inner:
            inner.add(above)
            above = before.get(above)
    texts = []
    for end in sorted(place for place in examples if place not in inner):
        path, above = [rows[end].text or ""], before[end]
        while above is not None:
            path.append(MISSING_TEXT if above == MISSING else rows[above].text or REMOVED_TEXT)
            above = before.get(above)
        texts.append(SEPARATOR.join(reversed(path)))
    return texts, counts


class Partitions:
    """Comments on disk, as of the last commit."""

    def __init__(self, folder: Path, num_partitions: int, num_dumps: int) -> None:
        self.paths = [folder / f"{number:05d}.arrow" for number in range(num_partitions)]
        self.sizes = [0] * num_partitions
        self.dumps = [DumpPosition()] * num_dumps
        self._record = folder / "read.json"
        if self._record.exists():
            record = read_json(self._record)
            self.sizes = record["sizes"]
            self.dumps = [DumpPosition(**dump) for dump in record["dumps"]]

    def commit(self, batches: Sequence[pa.RecordBatch], number: int, dump: DumpPosition) -> None:
        """Append comments, then record how far their dump was read."""
        comments = pa.Table.from_batches(batches, SCHEMA)
        # The high half of a hash of the thread chooses the partition.
        high = comments["thread"].to_numpy() * GOLDEN_RATIO >> HALF
        partitions = (high * np.uint64(len(self.paths)) >> HALF).astype(np.int64)
        comments = comments.take(np.argsort(partitions, kind="stable"))
        counts = np.bincount(partitions, minlength=len(self.paths))
        starts = np.cumsum(counts) - counts
        for partition in np.flatnonzero(counts).tolist():
            part = comments.slice(starts[partition], counts[partition]).combine_chunks()
            with appending(self.paths[partition]) as file:
                if not self.sizes[partition]:
                    file.write(SCHEMA.serialize())
                file.writelines(batch.serialize() for batch in part.to_batches())
                self.sizes[partition] = file.tell()
        # One call makes all partitions durable; a call for each of thousands takes far longer.
        os.sync()
        self.dumps[number] = dump
        write_json(self._record, {"sizes": self.sizes, "dumps": list(map(asdict, self.dumps))})

    def read(self, number: int) -> pa.Table:
        """The comments of a partition, in the order of the dumps and their lines."""
        if not self.sizes[number]:
            return SCHEMA.empty_table()
        with pa.memory_map(str(self.paths[number])) as file:
            return pa.ipc.open_stream(file).read_all()


def line_batches(path: Path, num_done: int, *, allow_damaged: bool = False) -> Iterator[Batch]:
    """Lines after the first `num_done`."""
    with compression.open_decompressed(path, allow_damaged=allow_damaged) as file:
        batch: list[bytes | None] = []
        num_bytes = 0
        for line in islice(compression.whole_lines(file), num_done, None):
            batch.append(line)
            num_bytes += len(line or b"")
            if num_bytes >= BLOCK_BYTES:
                yield batch, DumpPosition(num_stored=file.raw.num_stored_read)
                batch, num_bytes = [], 0
        num_stored = path.stat().st_size
        yield batch, DumpPosition(num_stored=num_stored, is_done=True, damage=file.raw.damage)


class RedditSource:
    """Comments of Pushshift dumps, each with the path of comments that leads to it.

    The dumps are read once, on all cores and in bounded memory, and their comments stored in the
    work folder, when `documents` first needs them. A process that is killed loses ten seconds of
    work; the next one resumes.

    The order of documents depends on the dumps only: by a hash of the thread, then by thread, time
    and id.
    """

    name = "reddit"

    def __init__(
        self,
        paths: Sequence[Path | str],
        work_folder: Path | str,
        options: RedditOptions | None = None,
        *,
        allow_damaged: bool = False,
        num_workers: int | None = None,
        progress: Display | None = None,
    ) -> None:
        """Name the dumps and the work folder.

        Args:
            paths: the dumps, plain or compressed. Of comments with the same thread and id the first
                is kept, in the order of the dumps and of their lines.
            work_folder: a folder for this preparation only, with space for half of the decompressed
                dumps. It may be deleted when the corpus is complete.
            allow_damaged: whether a damaged dump is read up to the damage; else it is refused.
            num_workers: worker processes; None for one per core, if there is enough to do.
        """
        if isinstance(paths, Path | str) or not paths:
            rule = "paths must be a list of one dump or more"
            raise input_error(rule, repr(paths), "use for example ['RC_2019-07.zst']")
        self.files: Sequence[Path] = tuple(Path(path) for path in paths)
        for path in self.files:
            if not path.is_file():
                raise input_error("a dump must be a file", path, "check the path")
        self.work_folder = Path(work_folder)
        self.options = options or RedditOptions()
        self.allow_damaged = allow_damaged
        self.parameters: Mapping[str, Any] = asdict(self.options) | {"allow_damaged": allow_damaged}
        self.total_bytes = sum(path.stat().st_size for path in self.files)
        if num_workers is not None:
            check_integer("num_workers", num_workers, minimum=1, example=2)
        self.num_workers = num_workers
        self.progress = progress or Display()
        self._share = (0, 1)

    def share(self, number: int, count: int) -> "RedditSource":
        """Some partitions. The first share to be read fills the work folder; others wait for it."""
        found = copy(self)
        found._share = (number, count)
        return found

    def documents(self, cursor: Cursor | None = None) -> Iterator[tuple[Document, Cursor]]:
        """The documents after a cursor, or all for None; each with the cursor after it."""
        partitions, (number, count) = self._partitions, self._share
        mine = range(*(len(partitions.paths) * end // count for end in (number, number + 1)))
        # Lines belong to no partition: they are counted with the first one.
        skipped = self._skipped_lines() if 0 in mine else {}
        place: Mapping[str, int] = {"partition": mine.start, "document": 0}
        if cursor is not None:
            place, skipped = cursor.place, dict(cursor.skipped)
        num_before, bytes_each = place["document"], self.total_bytes / len(partitions.paths)
        for number in range(place["partition"], mine.stop):
            comments, found, num_rows, num_documents = partitions.read(number), Counter[str](), 0, 0
            for rows in threads(comments):
                texts, counts = texts_of(rows, self.options)
                found.update(counts)
                num_rows += len(rows)
                num_read = int(bytes_each * (number + num_rows / len(comments)))
                split = self.options.split_of(rows[0].thread)
                for text in texts:
                    num_documents += 1
                    if num_documents > num_before:
                        place = {"partition": number, "document": num_documents}
                        after = Cursor(place=place, num_read=num_read, skipped=skipped)
                        yield Document(text=text, split=split), after
            found["duplicates"] = len(comments) - num_rows
            new = Counter({f"comments: {kind}": count for kind, count in found.items()})
            num_before, skipped = 0, dict(Counter(skipped) + new)
            # Without text it only reports a position.
            num_read = int(bytes_each * (number + 1))
            place = {"partition": number + 1, "document": 0}
            yield Document(text=""), Cursor(place=place, num_read=num_read, skipped=skipped)

    def _skipped_lines(self) -> dict[str, int]:
        """The lines of the dumps that could not be used, in words."""
        words = Counter[str]()
        for path, dump in zip(self.files, self._partitions.dumps, strict=True):
            words[f"broken lines in {path.name}"] += dump.lines.get("broken", 0)
            words[f"{compression.OVERLONG} in {path.name}"] += dump.lines.get("overlong", 0)
            words[f"damage ({dump.damage}) in {path.name}"] += dump.damage is not None
        return dict(+words)

    @cached_property
    def _partitions(self) -> Partitions:
        """Read what is not read yet."""
        size, plan = 0.0, [FORMAT, self.options.bots, self.options.filters, self.allow_damaged]
        for path in self.files:
            is_compressed = compression.compression_of(path) is not None
            size += path.stat().st_size * (SIZE_IF_COMPRESSED if is_compressed else SIZE_IF_PLAIN)
            # What identifies a dump is its name, its size and its beginning.
            with path.open("rb") as file:
                plan += [path.name, path.stat().st_size, file.read(FINGERPRINT_BYTES).hex()]
        num_workers = self.num_workers or min(available_cores(), int(size) // WORTH_A_WORKER + 1)
        num_partitions = min(max(int(size) // PARTITION_BYTES, FEWEST_PARTITIONS), MOST_PARTITIONS)
        digest = hashlib.blake2b(json.dumps(plan).encode(), digest_size=6).hexdigest()
        folder = self.work_folder / f"partitions-{digest}"
        folder.mkdir(parents=True, exist_ok=True)
        # Workers come first: forked later they would hold the lock too, for a moment after a kill.
        with worker_pool(num_workers) as pool, locked(folder, wait=self._share[1] > 1):
            partitions = Partitions(folder, num_partitions, len(self.files))
            if not all(dump.is_done for dump in partitions.dumps):
                self._read_dumps(partitions, pool)
        return partitions

    def _read_dumps(self, partitions: Partitions, pool: Executor | None) -> None:
        """Store the comments of all dumps, from where an earlier process stopped."""
        for path, size in zip(partitions.paths, partitions.sizes, strict=True):
            if path.exists():
                # What was appended after the last commit.
                with appending(path) as file:
                    file.truncate(size)
        self.progress.say("reading the dumps")
        num_done = sum(dump.num_stored for dump in partitions.dumps)
        self.progress.begin("", num_done, self.total_bytes)
        num_comments = sum(dump.lines.get("comments", 0) for dump in partitions.dumps)
        parse = partial(parse_lines, options=self.options)
        for number, path in enumerate(self.files):
            dump, last_commit = partitions.dumps[number], time.monotonic()
            if dump.is_done:
                continue
            buffer: list[pa.RecordBatch] = []
            num_lines = sum(dump.lines.values())
            batches = line_batches(path, num_lines, allow_damaged=self.allow_damaged)
            for after, comments in in_order(pool, parse, batches):
                buffer.append(comments)
                num_comments += len(comments)
                num_done += after.num_stored - dump.num_stored
                lines = Counter(dump.lines) + Counter(after.lines)
                dump = replace(after, lines=dict(lines))
                self.progress.advance(num_done, comments=num_comments)
                is_full = sum(batch.nbytes for batch in buffer) >= BUFFER_BYTES
                is_late = time.monotonic() - last_commit >= COMMIT_SECONDS
                if dump.is_done or is_full or is_late:
                    partitions.commit(buffer, number, dump)
                    buffer, last_commit = [], time.monotonic()
