"""A prepared corpus as training data: one long stream, or one text a segment."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from staircase_attention.batches import IGNORED, Batch
from staircase_attention.data import (
    Corpus,
    TokenLanes,
    TokenPosition,
    TokenSplit,
    evaluation_batches,
)
from staircase_attention.data.splits import SPLITS
from staircase_attention.evaluation import Score, ScoredBatch
from staircase_attention.training.dataset import SplitName
from staircase_attention.training.recipe import CorpusChoice


class CorpusData:
    """The tokens of a corpus, each foretold from those before it."""

    def __init__(self, choice: CorpusChoice, *, seed: int, evaluation_tokens: int | None) -> None:
        if choice.form == "episodic" and evaluation_tokens == 1:
            raise ValueError(
                "training.evaluation_tokens must be at least 2 for a corpus of form episodic, got "
                "1; use more, since the first token of an episode is not foretold"
            )
        self.corpus = Corpus.open(Path(choice.folder))
        self.form = choice.form
        self.seed = seed
        self.evaluation_tokens = evaluation_tokens

    def check_splits(self) -> None:
        """Refuse a corpus that a run cannot be trained and scored on."""
        if not {*SPLITS} <= {*self.corpus.splits}:
            raise ValueError(
                "a corpus to train on must have the splits train, valid and test, got "
                f"{self.corpus.folder} with {', '.join(self.corpus.splits)}; prepare it again with "
                "--valid and --test over 0"
            )

    @property
    def num_inputs(self) -> int:
        """Symbols of the tokeniser."""
        return self.corpus.tokeniser.vocab_size

    @property
    def num_outputs(self) -> int:
        """The same."""
        return self.num_inputs

    @property
    def carries_state(self) -> bool:
        """Whether texts follow one another in a lane."""
        return self.form == "stream"

    def lanes(self, *, num_lanes: int, segment_length: int) -> "TokenLanes | EpisodeLanes":
        """What to train on."""
        self.check_splits()
        split = self.corpus.split("train")
        if self.form == "stream":
            return TokenLanes(split=split, num_lanes=num_lanes, segment_length=segment_length)
        return EpisodeLanes(
            split=split, num_lanes=num_lanes, segment_length=segment_length, seed=self.seed
        )

    def position(self, plain: Mapping[str, Any]) -> "TokenPosition | EpisodePosition":
        """The position that `as_plain` wrote."""
        if self.form == "stream":
            return TokenPosition.from_plain(plain)
        return EpisodePosition(**plain)

    def batches(
        self, name: SplitName, *, num_lanes: int, segment_length: int
    ) -> Iterator[ScoredBatch]:
        """Every token of a split once, or of its first part where the recipe asks for no more."""
        split = self.corpus.split(name)
        if self.form == "stream":
            return evaluation_batches(
                split,
                num_lanes=num_lanes,
                segment_length=segment_length,
                num_tokens=self.evaluation_tokens,
            )
        lanes = EpisodeLanes(
            split=split,
            num_lanes=num_lanes,
            segment_length=segment_length,
            seed=None,
            num_tokens=self.evaluation_tokens,
        )
        return lanes.once()

    def rank(self, score: Score) -> tuple[float, ...]:
        """By the loss."""
        return (score.loss,)

    def facts(self, name: SplitName, score: Score) -> dict[str, float]:
        """Bits and perplexity; what is said of a byte compares models of different tokenisers."""
        per_byte = score.loss * self._tokens_per_byte(name)
        return {
            "bits_per_byte": per_byte / math.log(2),
            "perplexity": math.exp(min(score.loss, 700.0)),
            "byte_perplexity": math.exp(min(per_byte, 700.0)),
        }

    def _tokens_per_byte(self, name: SplitName) -> float:
        """In what is scored."""
        num_tokens = self.corpus.split(name).num_tokens
        if self.evaluation_tokens is not None:
            num_tokens = min(num_tokens, self.evaluation_tokens)
        return num_tokens / max(1, self.corpus.num_bytes(name, num_tokens))


@dataclass(frozen=True, kw_only=True, slots=True)
class EpisodePosition:
    """How many batches have been given."""

    update: int

    def as_plain(self) -> dict[str, Any]:
        """As plain data."""
        return {"update": self.update}


class EpisodeLanes:
    """Segments that are each a text of its own: short ones padded, long ones cut into several.

    The appendix's episodic form. Episodes come in an order of each epoch's own, drawn from the seed
    and the epoch alone, or in the order of the corpus where there is no seed. With `num_tokens`
    they are of the first tokens of the split, as though it ended there.
    """

    def __init__(
        self,
        *,
        split: TokenSplit,
        num_lanes: int,
        segment_length: int,
        seed: int | None,
        num_tokens: int | None = None,
    ) -> None:
        self.split = split
        self.num_lanes = num_lanes
        self.segment_length = segment_length
        self.seed = seed
        starts = np.asarray(split.document_starts, dtype=np.int64)
        stop = split.num_tokens if num_tokens is None else min(num_tokens, split.num_tokens)
        starts = starts[starts < stop]
        lengths = np.diff(np.append(starts, stop))
        pieces = -(-lengths // segment_length)
        offsets = np.arange(int(pieces.sum())) - np.repeat(np.cumsum(pieces) - pieces, pieces)
        self.starts = np.repeat(starts, pieces) + offsets * segment_length
        self.lengths = np.minimum(
            segment_length, np.repeat(lengths, pieces) - offsets * segment_length
        )
        self._epoch, self._order = -1, np.arange(len(self.starts))

    def first_position(self) -> EpisodePosition:
        """Before the first batch."""
        return EpisodePosition(update=0)

    def batch(self, position: EpisodePosition) -> tuple[Batch, EpisodePosition]:
        """The batch at a position, and the position after it."""
        first = position.update * self.num_lanes
        numbers = range(first, first + self.num_lanes)
        episodes = [self._episode(number) for number in numbers]
        return self._fill(episodes), EpisodePosition(update=position.update + 1)

    def restarted(self, position: EpisodePosition) -> EpisodePosition:
        """The same: every segment begins anew as it is."""
        return position

    def once(self) -> Iterator[Batch]:
        """Every episode once, the last batch filled up with nothing."""
        count = len(self.starts)
        for first in range(0, count, self.num_lanes):
            numbers = range(first, min(first + self.num_lanes, count))
            yield self._fill([self._episode(number) for number in numbers])

    def _episode(self, number: int) -> int:
        epoch, place = divmod(number, len(self.starts))
        if self.seed is None:
            return place
        if epoch != self._epoch:
            generator = np.random.default_rng([self.seed, epoch])
            self._epoch, self._order = epoch, generator.permutation(len(self.starts))
        return int(self._order[place])

    def _fill(self, episodes: list[int]) -> Batch:
        shape = (self.num_lanes, self.segment_length)
        inputs = np.zeros(shape, dtype=np.int64)
        targets = np.full(shape, IGNORED, dtype=np.int64)
        is_padding: NDArray[np.bool_] = np.ones(shape, dtype=np.bool_)
        for row, episode in enumerate(episodes):
            start, length = int(self.starts[episode]), int(self.lengths[episode])
            tokens = self.split.tokens(start, start + length)
            inputs[row, :length] = tokens
            targets[row, : length - 1] = tokens[1:]
            is_padding[row, :length] = False
        return Batch(inputs=inputs, targets=targets, is_padding=is_padding)
