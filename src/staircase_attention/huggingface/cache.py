"""The recurrent state as a cache of Transformers."""

from typing import Any

from torch import Tensor
from transformers import Cache

from staircase_attention.models import State


class StateCache(Cache):
    """A `State` that passes through `generate()` as `past_key_values`.

    The model writes the new state into the cache it was called with, so a caller that keeps the
    cache can continue from there:

        cache = StateCache()
        model.generate(prompt, past_key_values=cache)
        cache.state  # the state after all tokens but the last

    It has no layers, and it cannot be cropped: a state does not keep what it has forgotten.
    """

    is_compileable = False
    """The size of a state changes as chunks fill."""
    is_croppable = False

    def __init__(self, state: State | None = None) -> None:
        super().__init__(layers=[])
        self.state = state
        """The state of all rows; None before the first token."""
        # Transformers counts columns, which all rows share; a state counts tokens by row.
        self.num_columns = max(state.lengths) if state is not None else 0
        """Columns of input seen so far, padding included."""

    def advance(self, state: State, num_columns: int) -> None:
        """Replace the state by the one after this many more columns."""
        self.state = state
        self.num_columns += num_columns

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """The number of columns that need not be fed again."""
        return self.num_columns

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Let each row continue the row that beam search chose for it."""
        self.batch_select_indices(beam_idx)

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep these rows, in this order; a row may be repeated."""
        if self.state is not None:
            self.state = self.state.select(indices.tolist())

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat every row."""
        if self.state is not None:
            rows = range(self.state.batch_size)
            self.state = self.state.select([row for row in rows for _ in range(repeats)])

    def reset(self) -> None:
        """Restart from an empty state."""
        self.state = None
        self.num_columns = 0

    def crop(self, *_: Any) -> None:  # noqa: ANN401
        """Refuse: a state cannot go back."""
        raise NotImplementedError(
            "a recurrent state cannot go back, got a request to crop it; "
            "keep cache.state of an earlier moment, and continue from StateCache(state)"
        )

    @property
    def batch_size(self) -> int:
        """Rows; -1 before the first token."""
        return -1 if self.state is None else self.state.batch_size

    @property
    def is_initialized(self) -> bool:
        """Whether there is a state."""
        return self.state is not None

    def __len__(self) -> int:
        """One, so that an empty cache is not false."""
        return 1

    def __repr__(self) -> str:
        return f"StateCache(rows={self.batch_size}, num_columns={self.num_columns})"
