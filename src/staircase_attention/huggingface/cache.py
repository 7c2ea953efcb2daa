"""The recurrent state as a cache of Transformers."""

from collections import deque
from collections.abc import Callable

import torch
from torch import Tensor
from transformers import Cache

from staircase_attention.checks import input_error
from staircase_attention.models import State


class StateCache(Cache):
    """A `State` that passes through `generate()` as `past_key_values`.

    The model writes the new state into the cache it was called with, so a caller that keeps the
    cache can continue from there:

        cache = StateCache()
        model.generate(prompt, past_key_values=cache)
        cache.state  # the state after all tokens but the last

    It has no layers. It can be cropped to any column of its latest calls: the one with that column
    is run again from the state before it. By default one call is kept; an assistant, which makes a
    call for each token that it drafts, needs more.
    """

    is_compileable = False
    """The size of a state changes as chunks fill."""
    is_croppable = True

    def __init__(self, state: State | None = None, *, num_calls: int = 1) -> None:
        super().__init__(layers=[])
        self.state = state
        """The state of all rows; None before the first token."""
        # Transformers counts columns, which all rows share; a state counts tokens by row.
        self.num_columns = max(state.lengths) if state is not None else 0
        """Columns of input seen so far, padding included."""
        self.calls: deque[tuple[int, Callable[[int], State]]] = deque(maxlen=num_calls)
        """Of the latest calls: columns before it, and the state after some of its own."""

    def advance(
        self, state: State, num_columns: int, run_again: Callable[[int], State] | None
    ) -> None:
        """Replace the state by the one after this many more columns."""
        if run_again is None:
            self.calls.clear()
        else:
            self.calls.append((self.num_columns, run_again))
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
        self.calls.clear()
        if self.state is not None:
            self.state = self.state.select(indices.tolist())

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat every row."""
        rows = torch.arange(max(0, self.batch_size))
        self.batch_select_indices(rows.repeat_interleave(repeats))

    def reset(self) -> None:
        """Restart from an empty state."""
        self.state, self.num_columns = None, 0
        self.calls.clear()

    def crop(self, tokens_to_remove: int) -> None:
        """Forget the latest -tokens_to_remove columns; a positive number is how many stay."""
        kept = tokens_to_remove if tokens_to_remove > 0 else self.num_columns + tokens_to_remove
        if kept >= self.num_columns:
            return
        if not self.calls or kept < self.calls[0][0]:
            rule = "a cache can forget only columns of its latest calls, without gradients"
            remedy = "keep cache.state of an earlier moment, and continue from StateCache(state)"
            raise input_error(rule, f"{self.num_columns - kept} to forget", remedy)
        while self.calls[-1][0] > kept:
            self.calls.pop()
        before, run_again = self.calls[-1]
        self.state, self.num_columns = run_again(kept - before), kept

    @property
    def batch_size(self) -> int:
        """Rows; -1 before the first token."""
        return -1 if self.state is None else self.state.batch_size

    def __len__(self) -> int:
        """One, so that an empty cache is not false."""
        return 1

    def __repr__(self) -> str:
        return f"StateCache(rows={self.batch_size}, num_columns={self.num_columns})"
