"""One split of a corpus: a long array of tokens in files that are never read in as a whole."""

from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from staircase_attention.checks import input_error
from staircase_attention.data.manifest import TOKEN_DTYPES, ArrayRecord, SplitRecord
from staircase_attention.data.shards import STARTS_DTYPE
from staircase_attention.data.tokenisers import Tokens


class TokenSplit:
    """Tokens in mapped memory, across shards; cheap to open, whatever the size."""

    def __init__(
        self, folder: Path, record: SplitRecord, *, dtype: str, end_symbol: int | None
    ) -> None:
        self.record, self.end_symbol = record, end_symbol
        self.dtype: np.dtype[Any] = np.dtype(TOKEN_DTYPES[dtype])
        self._folder = folder
        self._shards = [_mapped(folder, shard, self.dtype) for shard in record.shards]
        sizes = [shard.num_items for shard in record.shards]
        self._ends = np.cumsum(sizes)
        self._begins = self._ends - sizes

    def __len__(self) -> int:
        return self.num_tokens

    @property
    def num_tokens(self) -> int:
        """With the end symbols."""
        return self.record.num_tokens

    @property
    def num_bytes(self) -> int:
        """Of text; bits per byte are a sum of losses over this, and over log 2."""
        return self.record.num_bytes

    @cached_property
    def document_starts(self) -> NDArray[np.uint64]:
        """(num_documents,) where in the split each document begins, mapped."""
        return _mapped(self._folder, self.record.starts, STARTS_DTYPE)

    def tokens(self, start: int, stop: int) -> Tokens:
        """The tokens from start up to stop: a view where they lie in one shard."""
        if not 0 <= start <= stop <= self.num_tokens:
            rule = f"tokens must be asked for from 0 to {self.num_tokens}"
            raise input_error(rule, f"{start} to {stop}", "ask for fewer")
        first = int(np.searchsorted(self._ends, start, side="right"))
        parts = []
        for number in range(first, len(self._shards)):
            begin = int(self._begins[number])
            if begin >= stop:
                break
            parts.append(self._shards[number][max(start - begin, 0) : stop - begin])
        if len(parts) == 1:
            return parts[0]
        return np.concatenate(parts) if parts else np.empty(0, dtype=self.dtype)

    def rows(self, starts: NDArray[np.int64], length: int) -> Tokens:
        """(len(starts), length) tokens from each start on; after the last comes the first."""
        starts = starts % self.num_tokens
        rows = np.empty((len(starts), length), dtype=self.dtype)
        shards = np.searchsorted(self._ends, starts, side="right")
        is_easy = starts + length <= self._ends[shards]
        for shard in np.unique(shards[is_easy]).tolist():
            here = np.flatnonzero(is_easy & (shards == shard))
            # One row for every place that a row can begin at, of which only these are copied.
            windows = sliding_window_view(self._shards[shard], length)
            rows[here] = windows[starts[here] - self._begins[shard]]
        for row in np.flatnonzero(~is_easy).tolist():
            rows[row] = self._wrapped(int(starts[row]), length)
        return rows

    def document(self, number: int) -> Tokens:
        """One document, with its end symbol."""
        starts = self.document_starts
        is_last = number + 1 == len(starts)
        return self.tokens(
            int(starts[number]), self.num_tokens if is_last else int(starts[number + 1])
        )

    def _wrapped(self, start: int, length: int) -> Tokens:
        parts = []
        while length:
            stop = min(start + length, self.num_tokens)
            parts.append(self.tokens(start, stop))
            length -= stop - start
            start = 0
        return np.concatenate(parts)


def _mapped(folder: Path, record: ArrayRecord, dtype: np.dtype[Any]) -> NDArray[Any]:
    mapped: NDArray[Any] = np.memmap(
        folder / record.file, dtype=dtype, mode="r", shape=(record.num_items,)
    )
    # A plain array over the same memory: slices of a memmap cost more than those of an array.
    return mapped.view(np.ndarray)
