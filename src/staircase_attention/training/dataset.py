"""What a model is trained on: a task's episodes, or the tokens of a prepared corpus.

Both offer the same: lanes to train on without end, whose position is plain data, and splits that
are scored whole.
"""

import math
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from staircase_attention import data as corpora
from staircase_attention import tasks
from staircase_attention.batches import IGNORED, Batch
from staircase_attention.checks import input_error
from staircase_attention.cores import in_background
from staircase_attention.evaluation import Score
from staircase_attention.tasks.splits import try_out
from staircase_attention.training.processes import is_first_process
from staircase_attention.training.recipe import CorpusChoice, Recipe, TaskChoice

SplitName = Literal["train", "valid", "test"]
# Tokens that are counted in one call.
TOKENS_AT_ONCE = 1 << 24


class TaskData:
    """Episodes of a state-tracking task."""

    carries_state = True

    def __init__(self, task: tasks.Task, seed: int, growth: tasks.Growth | None = None) -> None:
        self.task = task
        self.num_inputs, self.num_outputs = task.num_inputs, task.num_outputs
        self.seed = seed
        self.growth = growth or tasks.Growth()

    def check(self) -> None:
        """Refuse a task whose episodes cannot be drawn."""
        try_out(self.task, self.seed)

    def lanes(self, *, num_lanes: int, segment_length: int) -> tasks.Lanes:
        """One episode after another in every lane."""
        return tasks.Lanes(
            source=tasks.training_source(self.task, self.seed),
            num_lanes=num_lanes,
            segment_length=segment_length,
            growth=self.growth,
            closing_symbol=self.task.closing_symbol,
        )

    def batches(
        self, name: SplitName, *, num_lanes: int, segment_length: int, num_tokens: int | None = None
    ) -> Iterator[Batch]:
        """Every token of a split once."""
        assert num_tokens is None, "episodes are scored whole"
        return tasks.evaluation_batches(
            self.episodes(name), num_lanes=num_lanes, segment_length=segment_length
        )

    def episodes(self, name: SplitName) -> tasks.Episodes:
        """The episodes of a split."""
        return tasks.split(self.task, name, self.seed)

    def rank(self, score: Score) -> tuple[float, ...]:
        """What two scores are compared by, lower is better: the error, then the loss."""
        return score.error, score.loss

    def facts(self, name: SplitName, score: Score, num_tokens: int | None) -> dict[str, float]:
        """Further measures of a score: none beside loss and error."""
        return {}

    def beats_constant(self, name: SplitName, score: Score) -> bool:
        """Whether the error is below that of the best constant answer, by 3 standard errors."""
        guess, count = self.constant_error(name), self.episodes(name).num_answers
        return bool(score.error < guess - 3 * math.sqrt(guess * (1 - guess) / count))

    def constant_error(self, name: SplitName) -> float:
        """The error of the best constant answer."""
        targets = self.episodes(name).targets
        counts = np.bincount(targets[targets != IGNORED])
        return float(1 - counts.max() / counts.sum())

    def extent(self, name: SplitName, num_tokens: int | None) -> dict[str, int]:
        """How much of a split is scored, in tokens of a corpus: nothing to report here."""
        return {}

    def with_length(self, length: int) -> "TaskData":
        """The same task with episodes of another length."""
        return TaskData(tasks.with_length(self.task, length), self.seed)


class CorpusData:
    """The tokens of a corpus, each predicted from those before it."""

    def __init__(self, choice: CorpusChoice, *, seed: int) -> None:
        self.corpus = corpora.Corpus.open(Path(choice.folder))
        self.num_inputs = self.num_outputs = self.corpus.tokeniser.vocab_size
        self.form = choice.form
        self.carries_state = choice.form == "stream"
        """Whether a lane's segment continues the one before it."""
        self.seed = seed
        self._verifications: dict[str, Future[None]] = {}
        """Of each split that is used: whether it is whole."""

    def check(self) -> None:
        """Refuse a corpus that lacks a split to train or to score on."""
        if not {*get_args(SplitName)} <= {*self.corpus.splits}:
            rule = "a corpus to train on must have the splits train, valid and test"
            received = f"{self.corpus.folder} with {', '.join(self.corpus.splits)}"
            raise input_error(rule, received, "prepare it again with --valid and --test over 0")

    def lanes(self, *, num_lanes: int, segment_length: int) -> "corpora.TokenLanes | EpisodeLanes":
        """One document after another in every lane, or one episode per segment."""
        # Checked again where a run resumes: its corpus may have been prepared again since.
        self.check()
        self._verify("train")
        split = self.corpus.split("train")
        sizes = {"num_lanes": num_lanes, "segment_length": segment_length}
        if self.form == "stream":
            return corpora.TokenLanes(split=split, **sizes)
        return EpisodeLanes(split=split, seed=self.seed, **sizes)

    def batches(
        self,
        name: SplitName | corpora.TokenSplit,
        *,
        num_lanes: int,
        segment_length: int,
        num_tokens: int | None = None,
    ) -> Iterator[Batch]:
        """Every token of a split once, or of its first `num_tokens`."""
        if isinstance(name, str):
            self._verify(name)
        split = self.corpus.split(name) if isinstance(name, str) else name
        sizes = {"num_lanes": num_lanes, "segment_length": segment_length}
        if self.form == "stream":
            return corpora.evaluation_batches(split, **sizes, num_tokens=num_tokens)
        return EpisodeLanes(split=split, seed=None, **sizes, num_tokens=num_tokens).once()

    def rank(self, score: Score) -> tuple[float, ...]:
        """What two scores are compared by, lower is better: the loss."""
        return (score.loss,)

    def beats_constant(self, name: SplitName, score: Score) -> bool:
        """Whether the loss is below that of the best constant guess: how often each token comes."""
        split, counts = self.corpus.split(name), np.zeros(self.num_outputs, dtype=np.int64)
        for start in range(0, split.num_tokens, TOKENS_AT_ONCE):
            tokens = split.tokens(start, min(start + TOKENS_AT_ONCE, split.num_tokens))
            counts += np.bincount(tokens, minlength=self.num_outputs)
        shares = counts[counts > 0] / split.num_tokens
        return bool(score.loss < -(shares * np.log(shares)).sum())

    def extent(self, name: SplitName, num_tokens: int | None) -> dict[str, int]:
        """How many tokens of a split are scored, and how many it has."""
        whole = self.corpus.split(name).num_tokens
        return {"num_tokens": min(whole, num_tokens or whole), "split_tokens": whole}

    def facts(self, name: SplitName, score: Score, num_tokens: int | None) -> dict[str, float]:
        """Bits and perplexity; those per byte compare models of different tokenisers."""
        for split, verification in self._verifications.items():
            # The test ends a run: by then all that it was trained on is verified, too.
            if name in (split, "test") or verification.done():
                verification.result()
        num_tokens = self.extent(name, num_tokens)["num_tokens"]
        tokens_per_byte = num_tokens / max(1, self.corpus.num_bytes(name, num_tokens))
        # The loss is per token, in nats. exp overflows beyond 709, where a diverged loss may be.
        per_byte = score.loss * tokens_per_byte
        return {
            "bits_per_byte": per_byte / math.log(2),
            "perplexity": math.exp(min(score.loss, 700.0)),
            "byte_perplexity": math.exp(min(per_byte, 700.0)),
        }

    def _verify(self, name: str) -> None:
        """Check a split's checksums in the background, once."""
        if name not in self._verifications and is_first_process():
            self._verifications[name] = in_background(self.corpus.verify_split, name)


@dataclass(frozen=True, kw_only=True, slots=True)
class EpisodePosition:
    """The number of batches so far."""

    update: int


@dataclass(kw_only=True, eq=False)
class EpisodeLanes:
    """One document per segment: short ones are padded, long ones cut into several segments.

    The appendix's episodic form. Each epoch has its own order, drawn from the seed and the epoch
    alone; without a seed it is that of the corpus. `num_tokens` ends the split early.
    """

    split: corpora.TokenSplit
    num_lanes: int
    segment_length: int
    seed: int | None
    num_tokens: int | None = None

    def __post_init__(self) -> None:
        starts = np.asarray(self.split.document_starts, dtype=np.int64)
        stop = self.split.num_tokens
        stop = stop if self.num_tokens is None else min(self.num_tokens, stop)
        starts = starts[starts < stop]
        # Per document its length and number of segments; then per segment its number within its
        # document, from which follow its first token and its length.
        lengths = np.diff(np.append(starts, stop))
        pieces = -(-lengths // self.segment_length)
        offsets = np.arange(int(pieces.sum())) - np.repeat(np.cumsum(pieces) - pieces, pieces)
        before = offsets * self.segment_length
        self.starts = np.repeat(starts, pieces) + before
        self.lengths = np.minimum(self.segment_length, np.repeat(lengths, pieces) - before)
        self._epoch, self._order = -1, np.arange(len(self.starts))

    def first_position(self) -> EpisodePosition:
        """Before the first batch."""
        return EpisodePosition(update=0)

    def batch(self, position: EpisodePosition) -> tuple[Batch, EpisodePosition]:
        """The batch at a position, and the position after it."""
        first = position.update * self.num_lanes
        batch = self._fill(range(first, first + self.num_lanes), self.segment_length)
        return batch, EpisodePosition(update=position.update + 1)

    def once(self) -> Iterator[Batch]:
        """Every episode once, in segments that are no longer than the longest."""
        count = len(self.starts)
        for first in range(0, count, self.num_lanes):
            numbers = range(first, min(first + self.num_lanes, count))
            yield self._fill(numbers, int(self.lengths.max()))

    def _episode(self, number: int) -> int:
        epoch, place = divmod(number, len(self.starts))
        if self.seed is None:
            return place
        if epoch != self._epoch:
            # Only the latest order is kept: a rollback into an earlier epoch draws that one again.
            generator = np.random.default_rng([self.seed, epoch])
            self._epoch, self._order = epoch, generator.permutation(len(self.starts))
        return int(self._order[place])

    def _fill(self, numbers: range, length: int) -> Batch:
        episodes = [self._episode(number) for number in numbers]
        # [episodes, length + 1], of which only what belongs to the episode is used.
        tokens = self.split.rows(self.starts[episodes], length + 1).astype(np.int64)
        places, lengths = np.arange(length), self.lengths[episodes][:, None]
        return Batch(
            inputs=np.where(places < lengths, tokens[:, :-1], 0),
            # The last token has no target: what follows is in another segment or document.
            targets=np.where(places < lengths - 1, tokens[:, 1:], IGNORED),
        )


Dataset = TaskData | CorpusData
# Where every lane is in the training data.
Position = tasks.Position | corpora.TokenPosition | EpisodePosition


def build_dataset(recipe: Recipe) -> Dataset:
    """The data that a recipe names."""
    if isinstance(recipe.task, TaskChoice):
        task = tasks.load_task(recipe.task.reference, **recipe.task.options)
        return TaskData(task, recipe.data_seed, recipe.training.growth)
    return CorpusData(recipe.task, seed=recipe.data_seed)
