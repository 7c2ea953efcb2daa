"""Small corpora, and what is needed to make and compare them."""

import bz2
import gzip
import io
import json
import lzma
import multiprocessing
import os
import signal
import subprocess
import sys
import time
import warnings
import zipfile
from contextlib import contextmanager
from pathlib import Path

import pytest

from staircase_attention.data import (
    Corpus,
    Cursor,
    Display,
    Document,
    HeldOut,
    TextSource,
    preparation,
    train_bpe,
)

REAL = Path(__file__).parents[2].parent / "shared" / "data"
"""The folder of the real data, which may be missing."""

needs_real_data = pytest.mark.skipif(not REAL.is_dir(), reason=f"there is no real data in {REAL}")

COUNTER = Path(__file__).parents[2] / "benchmarks" / "independent_counts.py"
"""Counts a corpus again from its raw files, and shares no code with the package."""

ALL_TRAIN = HeldOut(valid=0, test=0)
SOME = HeldOut(valid=0.2, test=0.2)
WORDS = "the cat sat on a mat and dogs' 12 owners, naïve as they were, said: Ещё! 一个".split()  # noqa: SIM905
SPACES = (" ", "  ", "\n", "\n\n", " \t", "\r\n")


def text_of(number: int, num_words: int = 40) -> str:
    """A text unlike that of any other number, with spaces and newlines of all sorts."""
    words = [WORDS[(number * 7 + place * place) % len(WORDS)] for place in range(num_words)]
    spaces = [SPACES[(number + place) % 19 % len(SPACES)] for place in range(num_words)]
    return f"{number}: " + "".join(map(str.__add__, words, spaces))


def write_lines(path: Path, texts: list[str]) -> Path:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path


def compressed(data: bytes, kind: str) -> bytes:
    if kind == "zst":
        return pytest.importorskip("zstandard").ZstdCompressor(write_checksum=True).compress(data)
    if kind == "zip":
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("content", data)
        return buffer.getvalue()
    compress = {"plain": bytes, "gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress}
    return compress[kind](data)


class ListedSource:
    """A source of texts in memory."""

    def __init__(self, texts, split=None):
        self.name, self.texts, self.split = "listed", texts, split
        self.parameters, self.files = {}, []
        self.total_bytes = len(texts)

    def documents(self, cursor):
        first = cursor.place["next"] if cursor else 0
        for number in range(first, len(self.texts)):
            document = Document(text=self.texts[number], split=self.split)
            yield document, Cursor(place={"next": number + 1}, num_read=number + 1)


class RecordedProgress(Display):
    """Records all reports, and may act on the number of those that have facts."""

    def __init__(self, action=None):
        self.reports, self.num_advances, self.action = [], 0, action

    @property
    def said(self):
        return [report[1] for report in self.reports if report[0] == "say"]

    def begin(self, name, done, total):
        self.reports.append(("begin", total, done))

    def advance(self, done, **facts):
        self.reports.append(("advance", done, facts))
        self.num_advances += bool(facts)
        if facts and self.action is not None:
            self.action(self.num_advances)

    def say(self, text):
        self.reports.append(("say", text))


@contextmanager
def storing(*, shard_tokens: int = 1 << 28, commit_seconds: float = 5.0):
    """Let preparations write smaller files, and commit more often."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(preparation, "SHARD_TOKENS", shard_tokens)
        patch.setattr(preparation, "COMMIT_SECONDS", commit_seconds)
        yield


def whole_documents(source: TextSource) -> list[bytes]:
    """The documents of a source that have text, their parts put together."""
    documents, parts = [], []
    for document, _ in source.documents(None):
        parts.append(document.data)
        if not document.is_continued:
            documents.append(b"".join(parts))
            parts = []
    assert not parts
    return [document for document in documents if document]


def skipped_by(source: TextSource) -> dict[str, int]:
    *_, (_, cursor) = source.documents(None)
    return cursor.skipped


def texts_of(corpus: Corpus, split: str) -> list[bytes]:
    """The documents of a split, decoded; each is followed by one end symbol."""
    tokens = corpus.split(split)
    documents = [tokens.document(number) for number in range(len(tokens.document_starts))]
    if tokens.end_symbol is not None:
        assert all((document == tokens.end_symbol).sum() == 1 for document in documents)
        assert all(document[-1] == tokens.end_symbol for document in documents)
    return [corpus.tokeniser.decode(document) for document in documents]


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of a folder."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def counted_again(kind: str, corpus: Corpus, *files: Path) -> str:
    """A table of independent counts; fails if one of them differs from the corpus's own."""
    command = [sys.executable, COUNTER, kind, corpus.folder, *files]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def started(function, *arguments, **options):
    """A process of its own, which need not import anything again."""
    context = multiprocessing.get_context("fork")
    process = context.Process(target=function, args=arguments, kwargs=options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        process.start()
    return process


def wait_until(condition, seconds=60):
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.002)


def killed(process):
    """Kill a process as the system does."""
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert process.exitcode == -signal.SIGKILL


def small_bpe():
    """A byte-level tokeniser with some merges."""
    return train_bpe((text_of(number).encode() for number in range(50)), vocab_size=350)
