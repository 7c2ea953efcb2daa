"""Writes an unfinished corpus: files that only grow, and a journal of durable points.

A killed preparation truncates all files to the last durable point, and resumes there. The folder
lies beside the corpus; when everything is written, it is renamed to it.
"""

import json
import os
import shutil
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

import numpy as np

from staircase_attention import files
from staircase_attention.checks import input_error
from staircase_attention.data import corpus
from staircase_attention.data.documents import SPLITS
from staircase_attention.data.mixture import MixturePosition, PartPosition, Piece
from staircase_attention.data.tokenisers import Tokeniser, Tokens
from staircase_attention.plain import from_plain, to_plain

JOURNAL = "journal.json"
PREPARATION = "preparation.json"
# Tokens, documents or bytes that are copied at once.
COPIED = 1 << 22


class WorkFolder:
    """An unfinished corpus. Its name ends in .unfinished, so that it is not taken for a corpus."""

    def __init__(self, folder: Path) -> None:
        self.corpus = folder
        self.path = corpus.unfinished_folder(folder)
        self.tokeniser = self.path / corpus.TOKENISER_FOLDER

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes out. A folder in which no work was started is removed again."""
        if self.corpus.exists() and not self.corpus.is_dir():
            raise input_error("a corpus must be a folder", self.corpus, "name another path")
        files.make_folder(self.path)
        with files.locked(self.path):
            try:
                yield
            finally:
                if not any((self.path / name).exists() for name in (PREPARATION, corpus.MANIFEST)):
                    self.discard()

    def is_done(self, preparation: corpus.Preparation) -> bool:
        """Whether this very corpus exists already; a different one is refused."""
        if (self.path / corpus.MANIFEST).exists():
            self._publish()
        if not self.corpus.exists() or not any(self.corpus.iterdir()):
            if self.corpus.resolve().is_mount():
                # The finished folder could not be renamed to it.
                rule, remedy = "a corpus must not be a mounted folder itself", "name a folder in it"
                raise input_error(rule, self.corpus, remedy)
            return False
        if not (self.corpus / corpus.MANIFEST).exists():
            rule = f"{self.corpus} must be new or empty"
            raise input_error(rule, "a folder with other files", "name another folder")
        before = corpus.Manifest.read(self.corpus).preparation.without_results()
        _check_same(to_plain(before), to_plain(preparation), self.corpus)
        return True

    def claim(self, preparation: corpus.Preparation) -> None:
        """Record what is prepared here, or check that it is the same as before."""
        path = self.path / PREPARATION
        if path.exists():
            with files.as_written("a preparation", path, f"remove {self.path}"):
                before = files.read_json(path)
            _check_same(before, to_plain(preparation), self.path)
        else:
            files.write_json(path, to_plain(preparation))

    def finish(self, manifest: corpus.Manifest) -> None:
        """Turn the folder into the corpus. Once the manifest is there, only a rename is left."""
        files.write_json(self.path / files.CHECKSUMS, {})
        files.write_summed(self.path, {corpus.MANIFEST: files.json_bytes(asdict(manifest))})
        self._publish()

    def discard(self) -> None:
        """Remove everything."""
        shutil.rmtree(self.path, ignore_errors=True)

    def _publish(self) -> None:
        finished = [self.path / JOURNAL, self.path / PREPARATION]
        for path in [*finished, *self.path.glob(f".*{files.PARTIAL}")]:
            path.unlink(missing_ok=True)
        files.publish_folder(self.path, self.corpus.resolve())


def _check_same(before: object, now: object, folder: Path) -> None:
    """Refuse to mix two preparations."""
    if before != now:
        rule = f"{folder} must be prepared from the same files with the same options as before"
        raise input_error(rule, "others", f"name another folder, or remove {folder}")


class CorpusWriter:
    """Writes splits into a folder, and resumes from the last durable point that it finds there."""

    def __init__(
        self, folder: Path, tokeniser: Tokeniser, *, num_sources: int, shard_tokens: int
    ) -> None:
        self._folder = folder
        # The narrowest width that holds all tokens: 2 bytes for 8,008 symbols.
        self.dtype = np.min_scalar_type(tokeniser.vocab_size - 1).newbyteorder("<")
        journal = folder / JOURNAL
        new = {"counts": [{}] * num_sources, "crc32": 0, "shards": [], "num_open_tokens": 0}
        state: dict[str, Any] = {"splits": dict.fromkeys(SPLITS, new), "mixture": []}
        with files.as_written("a journal", journal, f"remove {folder} to start again"):
            # Earlier versions wrote journals without a checksum: those count as none.
            if journal.exists() and files.check_seal(content := files.read_file(journal)):
                state = files.parse_json(content)
        self.position = tuple(from_plain(PartPosition, at) for at in state["mixture"])
        """Where to resume the mixture; empty for its start."""
        self._is_inside_document = state.get("is_inside_document", False)
        self._writers = {
            split: _SplitWriter(
                folder / split,
                dtype=self.dtype,
                end_symbol=tokeniser.end_symbol,
                shard_tokens=shard_tokens,
                state=state["splits"][split],
            )
            for split in SPLITS
        }

    @property
    def facts(self) -> dict[str, int]:
        """Counts so far."""
        total = sum((writer.total for writer in self._writers.values()), corpus.Counts())
        return {"documents": total.num_documents, "tokens": total.num_tokens}

    def counts(self, source: int, split: str) -> corpus.Counts:
        """What a source has given to a split."""
        return self._writers[split].counts[source]

    def add(self, pieces: Sequence[Piece], encoded: Sequence[Tokens]) -> None:
        """Append pieces and their tokens."""
        for piece, tokens in zip(pieces, encoded, strict=True):
            self._writers[piece.split].add(piece, tokens, is_first=not self._is_inside_document)
            self._is_inside_document = not piece.is_last
        for writer in self._writers.values():
            writer.write()

    def append(self, part: corpus.Corpus) -> None:
        """Append all splits of a corpus with one source and the same tokeniser."""
        for name, record in part.manifest.splits.items():
            counts = part.manifest.preparation.sources[0].counts[name]
            self._writers[name].append(part.split(name), record, counts)

    def make_durable(self, position: MixturePosition) -> None:
        """Save this point: a preparation that is killed later resumes here, without loss."""
        state = {
            "sha256": files.NO_SUM.decode(),
            "splits": {name: writer.durable_state() for name, writer in self._writers.items()},
            "is_inside_document": self._is_inside_document,
            "mixture": [asdict(part) for part in position],
        }
        content = json.dumps(state, separators=(",", ":")).encode()
        files.write_whole(self._folder / JOURNAL, files.sealed(content))

    def close(self) -> None:
        """Close all files as they are."""
        for writer in self._writers.values():
            writer.close()

    def finish(self) -> dict[str, corpus.SplitRecord]:
        """Close all files, and remove those without tokens."""
        records = {name: writer.finish() for name, writer in self._writers.items()}
        records = {name: record for name, record in records.items() if record.num_tokens}
        arrays = [array for one in records.values() for array in (*one.shards, one.starts)]
        for path in self._folder.glob("*.bin"):
            if path.name not in {array.file for array in arrays}:
                path.unlink()
        return records


class _SplitWriter:
    """Writes one split: tokens in shards of at most `shard_tokens`, and where documents start."""

    def __init__(
        self,
        path: Path,
        *,
        dtype: np.dtype[Any],
        end_symbol: int | None,
        shard_tokens: int,
        state: Mapping[str, Any],
    ) -> None:
        """Start a split, or resume from what `durable_state` returned."""
        self._path, self._dtype, self._shard_tokens = path, dtype, shard_tokens
        self._end: Tokens = np.array([] if end_symbol is None else [end_symbol], dtype=dtype)
        self.counts = [corpus.Counts(**counts) for counts in state["counts"]]
        """One per source."""
        self._crc32: int = state["crc32"]
        self._finished = [corpus.ArrayRecord(**shard) for shard in state["shards"]]
        self._num_open_tokens: int = state["num_open_tokens"]
        # A shard that was started after the durable point is emptied when its turn comes again.
        self._shard = self._open_shard()
        starts_bytes = self.total.num_documents * corpus.STARTS_DTYPE.itemsize
        self._starts = _open_truncated(f"{path}-documents.bin", starts_bytes)
        self._new_tokens: list[Tokens] = []
        self._new_starts: list[int] = []

    @property
    def total(self) -> corpus.Counts:
        return sum(self.counts, corpus.Counts())

    def add(self, piece: Piece, tokens: Tokens, *, is_first: bool) -> None:
        counts = self.counts[piece.source]
        if is_first:
            self._new_starts.append(self.total.num_tokens)
            counts.num_documents += 1
        parts = [tokens, self._end] if piece.is_last else [tokens]
        self._new_tokens += parts
        self._crc32 = zlib.crc32(piece.data, self._crc32)
        counts.num_bytes += len(piece.data)
        counts.num_tokens += sum(map(len, parts))

    def write(self) -> None:
        """Write what was added."""
        self._starts.write(np.array(self._new_starts, dtype=corpus.STARTS_DTYPE).tobytes())
        self._new_starts.clear()
        if not self._new_tokens:
            return
        tokens = np.concatenate(self._new_tokens, dtype=self._dtype, casting="unsafe")
        self._new_tokens.clear()
        while len(tokens):
            room = self._shard_tokens - self._num_open_tokens
            part, tokens = tokens[:room], tokens[room:]
            self._shard.write(part.tobytes())
            self._num_open_tokens += len(part)
            if self._num_open_tokens == self._shard_tokens:
                self._finish_shard()
                self._shard = self._open_shard()

    def append(
        self, split: corpus.TokenSplit, record: corpus.SplitRecord, counts: corpus.Counts
    ) -> None:
        """Write another split after what was written."""
        before = self.total.num_tokens
        for start in range(0, record.num_documents, COPIED):
            starts = split.document_starts[start : start + COPIED] + np.uint64(before)
            self._starts.write(starts.astype(corpus.STARTS_DTYPE).tobytes())
        for start in range(0, record.num_tokens, COPIED):
            self._new_tokens.append(split.tokens(start, min(start + COPIED, record.num_tokens)))
            self.write()
        self._crc32 = _joined_crc32(self._crc32, record.text_crc32, record.num_bytes)
        self.counts[0] += counts

    def durable_state(self) -> dict[str, Any]:
        """Sync everything; the plain data from which a new writer can resume."""
        _sync(self._shard)
        _sync(self._starts)
        return {
            "counts": [asdict(counts) for counts in self.counts],
            "crc32": self._crc32,
            "shards": [asdict(shard) for shard in self._finished],
            "num_open_tokens": self._num_open_tokens,
        }

    def finish(self) -> corpus.SplitRecord:
        """Close all files and describe them."""
        if self._num_open_tokens:
            self._finish_shard()
        total = self.total
        starts = _finished_array(self._starts, total.num_documents)
        self.close()
        return corpus.SplitRecord(
            shards=tuple(self._finished), starts=starts, text_crc32=self._crc32, **asdict(total)
        )

    def close(self) -> None:
        self._shard.close()
        self._starts.close()

    def _open_shard(self) -> IO[bytes]:
        num_bytes = self._num_open_tokens * self._dtype.itemsize
        return _open_truncated(f"{self._path}-{len(self._finished):05d}.bin", num_bytes)

    def _finish_shard(self) -> None:
        self._finished.append(_finished_array(self._shard, self._num_open_tokens))
        self._num_open_tokens = 0


def _joined_crc32(first: int, second: int, num_bytes: int) -> int:
    """The CRC-32 of two texts, the second of `num_bytes`, from those of each.

    Texts of one length: crc(ab) ^ crc(a0) = crc(b) ^ crc(0).

    >>> _joined_crc32(zlib.crc32(b"a"), zlib.crc32(b"bc"), 2) == zlib.crc32(b"abc")
    True
    """
    nothing = 0
    for start in range(0, num_bytes, COPIED):
        zeros = bytes(min(COPIED, num_bytes - start))
        first, nothing = zlib.crc32(zeros, first), zlib.crc32(zeros, nothing)
    return first ^ nothing ^ second


def _open_truncated(path: str, num_bytes: int) -> IO[bytes]:
    """Open a file for appending after its first `num_bytes`; the rest of it is dropped."""
    file = files.appending(Path(path))
    assert file.tell() >= num_bytes, f"{path} has lost bytes that were synced"
    file.truncate(num_bytes)
    return file


def _sync(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())


def _finished_array(file: IO[bytes], num_items: int) -> corpus.ArrayRecord:
    """Sync and close a file of integers. Its checksum is that of the bytes on the disk."""
    _sync(file)
    file.close()
    path = Path(file.name)
    return corpus.ArrayRecord(file=path.name, num_items=num_items, sha256=files.sha256_of(path))
