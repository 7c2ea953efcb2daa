"""The recurrent state where Transformers keeps keys and values."""

from typing import Any

from torch import Tensor
from transformers import Cache

from staircase_attention.models import State


class StateCache(Cache):
    """A `State` that goes through `generate()` as `past_key_values`.

    A state is a value; a cache of Transformers is a place. So a model that is handed a cache puts
    the new state there, and whoever holds the cache can go on from it:

        cache = StateCache()
        model.generate(prompt, past_key_values=cache)
        cache.state  # where the streams stand

    It has no layers, and cannot go back: what a state has forgotten is gone.
    """

    def __init__(self, state: State | None = None) -> None:
        super().__init__(layers=[])
        self.state = state
        """Where the streams stand; None before they begin."""
        self.num_columns = max(state.lengths) if state is not None else 0
        """Columns of input taken in, padding included."""

    def advance(self, state: State, num_columns: int) -> None:
        """Go on to the state after so many columns more."""
        self.state = state
        self.num_columns += num_columns

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """How many columns of input need not be fed again."""
        return self.num_columns

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Let each row go on from the row that beam search chose for it."""
        self.batch_select_indices(beam_idx)

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep these rows, in this order; a row may come up repeatedly."""
        if self.state is not None:
            self.state = self.state.select(indices.tolist())

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat every row so many times."""
        if self.state is not None:
            rows = range(self.state.batch_size)
            self.state = self.state.select([row for row in rows for _ in range(repeats)])

    def reset(self) -> None:
        """Begin anew."""
        self.state = None
        self.num_columns = 0

    def crop(self, *_: Any) -> None:  # noqa: ANN401
        """Refuse to go back."""
        raise NotImplementedError(
            "a recurrent state cannot go back, got a request to crop it; "
            "keep cache.state of the moment to return to, and begin from StateCache(state)"
        )

    @property
    def batch_size(self) -> int:
        """Rows, or -1 before they begin."""
        return -1 if self.state is None else self.state.batch_size

    @property
    def is_croppable(self) -> bool:
        """No."""
        return False

    @property
    def is_compileable(self) -> bool:
        """No: the size of a state changes as chunks fill."""
        return False

    @property
    def is_initialized(self) -> bool:
        """Whether the streams have begun."""
        return self.state is not None

    def __len__(self) -> int:
        """One, so that no one takes it for nothing."""
        return 1

    def __repr__(self) -> str:
        return f"StateCache(rows={self.batch_size}, num_columns={self.num_columns})"


def check_cache(cache: object) -> None:
    """Refuse a cache of another kind of model."""
    if not isinstance(cache, StateCache):
        raise TypeError(
            f"past_key_values must be a StateCache, got {type(cache).__name__}; pass what this "
            "model gave back, StateCache(state), or nothing to begin anew"
        )
