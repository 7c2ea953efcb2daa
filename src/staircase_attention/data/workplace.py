"""The folder beside a corpus in which it is prepared; it becomes the corpus when it is whole."""

import fcntl
import json
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from staircase_attention.checks import input_error
from staircase_attention.data.checksums import checksums
from staircase_attention.data.corpus import TOKENISER_FOLDER, unfinished_folder
from staircase_attention.data.corpus_writer import JOURNAL
from staircase_attention.data.manifest import MANIFEST, Manifest, Preparation
from staircase_attention.data.tokenisers import Tokeniser
from staircase_attention.files import sync_folder, write_json

PREPARATION = "preparation.json"
CHECKSUMS = "checksums.json"


class Workplace:
    """An unfinished corpus. Its name ends in .unfinished, so that nobody takes it for a corpus."""

    def __init__(self, corpus: Path) -> None:
        self.corpus = corpus
        self.folder = unfinished_folder(corpus)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes out; the system lets go when this one ends, however it ends.

        A folder in which no work was begun is taken away again.
        """
        if self.corpus.exists() and not self.corpus.is_dir():
            raise input_error("a corpus must be a folder", self.corpus, "name another place")
        self.folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.folder, os.O_RDONLY)
        try:
            self._lock(descriptor)
            try:
                yield
            finally:
                if not any((self.folder / name).exists() for name in (PREPARATION, MANIFEST)):
                    self.discard()
        finally:
            os.close(descriptor)

    def _lock(self, descriptor: int) -> None:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            rule = f"{self.corpus} must be prepared by one process at a time"
            raise input_error(rule, "two", "wait for the other, or name another folder") from error

    def checksums(self, paths: Iterable[Path]) -> dict[Path, str]:
        """The checksums of files, none of them computed twice."""
        return checksums(paths, self.folder / CHECKSUMS)

    def is_done(self, preparation: Preparation) -> bool:
        """Whether this very corpus is already there; another one there is refused."""
        if (self.folder / MANIFEST).exists():
            self._publish()
        if not self.corpus.exists() or not any(self.corpus.iterdir()):
            return False
        if not (self.corpus / MANIFEST).exists():
            rule = f"{self.corpus} must be new or empty"
            raise input_error(rule, "a folder with other files", "name another folder")
        before = Manifest.read(self.corpus).preparation.without_results()
        _check_same(before.as_plain(), preparation.as_plain(), self.corpus)
        return True

    def claim(self, preparation: Preparation) -> None:
        """Write down what is prepared here, or see that it is the same as before."""
        path = self.folder / PREPARATION
        if path.exists():
            _check_same(json.loads(path.read_text()), preparation.as_plain(), self.folder)
        else:
            write_json(path, preparation.as_plain())

    @property
    def tokeniser_folder(self) -> Path:
        """Where the tokeniser is, once there is one."""
        return self.folder / TOKENISER_FOLDER

    def keep_tokeniser(self, tokeniser: Tokeniser) -> None:
        """Write a tokeniser down, whole or not at all."""
        scratch = self.folder / f".{TOKENISER_FOLDER}.partial"
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir()
        tokeniser.save(scratch)
        scratch.rename(self.tokeniser_folder)
        sync_folder(self.folder)

    def finish(self, manifest: Manifest) -> None:
        """Turn the folder into the corpus; from the manifest on nothing is left to do."""
        manifest.write(self.folder)
        self._publish()

    def discard(self) -> None:
        """Take everything away, and leave no trace."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _publish(self) -> None:
        for name in (JOURNAL, PREPARATION, CHECKSUMS):
            (self.folder / name).unlink(missing_ok=True)
        self.folder.rename(self.corpus)
        sync_folder(self.corpus.parent)


def _check_same(before: object, now: object, folder: Path) -> None:
    """Refuse to mix two preparations."""
    if before != now:
        rule = f"{folder} must be prepared from the same files with the same options as before"
        remedy = f"name another folder, or remove {folder}"
        raise input_error(rule, "others", remedy)
