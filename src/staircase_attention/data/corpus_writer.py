"""The splits of a corpus as they are written, batch by batch, with a journal of durable points."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from staircase_attention.data.manifest import Counts, SplitRecord
from staircase_attention.data.mixture_place import MixturePlace
from staircase_attention.data.shards import SplitWriter
from staircase_attention.data.splits import SPLITS
from staircase_attention.data.tokenisers import Tokeniser, Tokens
from staircase_attention.files import write_json

JOURNAL = "journal.json"


@dataclass(frozen=True, slots=True)
class Piece:
    """Some text of one document that is encoded at once."""

    data: bytes
    """What it says."""
    split: str
    """Where it goes."""
    source: int
    """The number of its source."""
    is_last: bool
    """Whether the document ends with it."""


class CorpusWriter:
    """Writes splits into a folder, and goes on from the last durable point that it finds there."""

    def __init__(
        self, folder: Path, tokeniser: Tokeniser, *, num_sources: int, shard_tokens: int
    ) -> None:
        """Begin, or cut all files back to the last durable point."""
        self._folder = folder
        self.dtype = dtype_for(tokeniser.vocab_size)
        end = tokeniser.end_symbol
        self._end: Tokens = np.array([] if end is None else [end], dtype=self.dtype)
        state = _last_state(folder)
        self.place = MixturePlace.from_plain(state["place"]) if state else None
        """Where in the mixture to go on; None for its beginning."""
        self._is_open: bool = state["is_open"] if state else False
        self.counts = [
            {split: Counts(**(state["counts"][source][split] if state else {})) for split in SPLITS}
            for source in range(num_sources)
        ]
        """For each source, what it has given to each split."""
        self._writers = {
            split: SplitWriter(
                folder,
                split,
                dtype=self.dtype,
                shard_tokens=shard_tokens,
                state=state["splits"][split] if state else None,
            )
            for split in SPLITS
        }

    @property
    def facts(self) -> dict[str, int]:
        """How much there is so far."""
        counts = [writer.counts for writer in self._writers.values()]
        return {
            "documents": sum(count.num_documents for count in counts),
            "tokens": sum(count.num_tokens for count in counts),
        }

    def add(self, pieces: Sequence[Piece], encoded: Sequence[Tokens]) -> None:
        """Add the next pieces."""
        for piece, tokens in zip(pieces, encoded, strict=True):
            writer, counts = self._writers[piece.split], self.counts[piece.source][piece.split]
            if not self._is_open:
                writer.begin_document()
                counts.num_documents += 1
            if piece.is_last:
                writer.add(piece.data, tokens, self._end)
                counts.num_tokens += len(self._end)
            else:
                writer.add(piece.data, tokens)
            counts.num_bytes += len(piece.data)
            counts.num_tokens += len(tokens)
            self._is_open = not piece.is_last
        for writer in self._writers.values():
            writer.write()

    def make_durable(self, place: MixturePlace) -> None:
        """From now on a killed preparation goes on here: no token lost, none twice."""
        state = {
            "splits": {name: writer.durable_state() for name, writer in self._writers.items()},
            "counts": [
                {split: asdict(count) for split, count in counts.items()} for counts in self.counts
            ],
            "is_open": self._is_open,
            "place": place.as_plain(),
        }
        write_json(self._folder / JOURNAL, state)

    def close(self) -> None:
        """Let go of all files, as they are."""
        for writer in self._writers.values():
            writer.close()

    def finish(self) -> dict[str, SplitRecord]:
        """Close all files, and take away those of splits without tokens."""
        records = {name: writer.finish() for name, writer in self._writers.items()}
        for name, record in records.items():
            if not record.num_tokens:
                for path in self._folder.glob(f"{name}-*.bin"):
                    path.unlink()
        return {name: record for name, record in records.items() if record.num_tokens}


def _last_state(folder: Path) -> Any:  # noqa: ANN401
    """The last durable point, if there is one."""
    journal = folder / JOURNAL
    return json.loads(journal.read_text()) if journal.exists() else None


def dtype_for(vocab_size: int) -> np.dtype[Any]:
    """The narrowest width that holds all tokens.

    >>> [dtype_for(size).name for size in (256, 257, 50_257, 100_000)]
    ['uint8', 'uint16', 'uint16', 'uint32']
    """
    return np.dtype(np.min_scalar_type(vocab_size - 1)).newbyteorder("<")
