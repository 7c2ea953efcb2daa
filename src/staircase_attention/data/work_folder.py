"""The folder beside a corpus in which it is prepared; when complete, it becomes the corpus."""

import json
import os
import shutil
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from staircase_attention.checks import input_error
from staircase_attention.data.corpus import TOKENISER_FOLDER, sha256_of, unfinished_folder
from staircase_attention.data.manifest import MANIFEST, Manifest, Preparation
from staircase_attention.data.tokenisers import Tokeniser
from staircase_attention.data.writer import JOURNAL
from staircase_attention.files import locked, sync_folder, write_json

PREPARATION = "preparation.json"
CHECKSUMS = "checksums.json"


class WorkFolder:
    """An unfinished corpus. Its name ends in .unfinished, so that it is not taken for a corpus."""

    def __init__(self, corpus: Path) -> None:
        self.corpus = corpus
        self.path = unfinished_folder(corpus)
        self.tokeniser = self.path / TOKENISER_FOLDER

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes out. A folder in which no work was started is removed again."""
        if self.corpus.exists() and not self.corpus.is_dir():
            raise input_error("a corpus must be a folder", self.corpus, "name another path")
        self.path.mkdir(parents=True, exist_ok=True)
        with locked(self.path):
            try:
                yield
            finally:
                if not any((self.path / name).exists() for name in (PREPARATION, MANIFEST)):
                    self.discard()

    def checksums(self, paths: Iterable[Path]) -> dict[Path, str]:
        """The SHA-256 of each file, by all cores; saved, and reused while a file is unchanged."""
        cache = self.path / CHECKSUMS
        known = json.loads(cache.read_text()) if cache.exists() else {}
        keys = {}
        for path in paths:
            status = path.stat()
            keys[path] = f"{path.absolute()} {status.st_size} {status.st_mtime_ns}"
        unknown = [path for path, key in keys.items() if key not in known]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            found = dict(zip(unknown, pool.map(sha256_of, unknown), strict=True))
        sums = {path: found.get(path) or known[key] for path, key in keys.items()}
        if found:
            write_json(cache, {keys[path]: value for path, value in sums.items()})
        return sums

    def is_done(self, preparation: Preparation) -> bool:
        """Whether this very corpus exists already; a different one is refused."""
        if (self.path / MANIFEST).exists():
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
        """Record what is prepared here, or check that it is the same as before."""
        path = self.path / PREPARATION
        if path.exists():
            _check_same(json.loads(path.read_text()), preparation.as_plain(), self.path)
        else:
            write_json(path, preparation.as_plain())

    def save_tokeniser(self, tokeniser: Tokeniser) -> None:
        """Save a tokeniser, completely or not at all."""
        scratch = self.path / f".{TOKENISER_FOLDER}.partial"
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir()
        tokeniser.save(scratch)
        scratch.rename(self.tokeniser)
        sync_folder(self.path)

    def finish(self, manifest: Manifest) -> None:
        """Turn the folder into the corpus. Once the manifest is there, only a rename is left."""
        manifest.write(self.path)
        self._publish()

    def discard(self) -> None:
        """Remove everything."""
        shutil.rmtree(self.path, ignore_errors=True)

    def _publish(self) -> None:
        for name in (JOURNAL, PREPARATION, CHECKSUMS):
            (self.path / name).unlink(missing_ok=True)
        self.path.rename(self.corpus)
        sync_folder(self.corpus.parent)


def _check_same(before: object, now: object, folder: Path) -> None:
    """Refuse to mix two preparations."""
    if before != now:
        rule = f"{folder} must be prepared from the same files with the same options as before"
        remedy = f"name another folder, or remove {folder}"
        raise input_error(rule, "others", remedy)
