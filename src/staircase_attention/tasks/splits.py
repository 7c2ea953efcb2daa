"""Train, valid and test: determined by a seed, and never sharing an episode.

Training data is an endless sequence of numbered episodes, also where the train split is finite.
Everything that a user's task returns is checked here: a mistake in its class is one line.
"""

import reprlib
import traceback
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Literal, TypeAlias, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray

from staircase_attention.batches import IGNORED
from staircase_attention.checks import (
    InputError,
    check_choice,
    check_integer,
    input_error,
    one_line,
)
from staircase_attention.tasks.task import Episodes, Integers, SplitSizes, Task, ragged_range

Split = Literal["train", "valid", "test"]
Fingerprints = NDArray[np.uint64]
Value = TypeVar("Value")

# Training episodes drawn at a time. Another size would change the data of every seed.
BLOCK_SIZE = 1_024
# Episodes drawn to replace those that may not be used.
NUM_REDRAWN = 256
# Draws after which a task is said to have too few different episodes.
NUM_ATTEMPTS = 100
# Episodes by which a task is tried out.
NUM_TRIED = 4

# First entry of a spawn key, so that no two uses of a seed share random numbers.
VALID_STREAM, TEST_STREAM, TRAIN_STREAM, EPOCH_STREAM, TRIAL_STREAM = range(5)


def split(task: Task, name: Split, seed: int) -> Episodes:
    """The episodes of one split, the same for the same task and seed.

    An episode occurs once in valid and test together, and never in train; episodes are equal if
    their inputs are. Train may contain an episode twice by chance.
    """
    check_choice("split", name, get_args(Split))
    if name != "train":
        valid, test = held_out(task, seed)
        return valid if name == "valid" else test
    num_train = sizes_of(task).train
    if num_train is None:
        received = f"{task.name} with endless training data"
        raise input_error("a train split must have a size", received, "use Endless(task, seed)")
    # A finite split is the beginning of the endless one.
    blocks, indices = Endless(task, seed).find(np.arange(num_train))
    train = blocks.take(indices)
    _check_asks(task, "train", train)
    return train


def held_out(task: Task, seed: int) -> tuple[Episodes, Episodes]:
    """Valid and test; all their episodes differ."""
    nothing = np.empty(0, dtype=np.uint64)
    sizes, task = sizes_of(task), task.held_out
    valid = _draw(task, seed, (VALID_STREAM,), sizes.valid, nothing, distinct=True)
    test = _draw(task, seed, (TEST_STREAM,), sizes.test, fingerprints(valid), distinct=True)
    _check_asks(task, "valid", valid)
    _check_asks(task, "test", test)
    return valid, test


def try_out(task: Task, seed: int) -> None:
    """Refuse a task that cannot be trained on.

    A few episodes are drawn, which belong to no split; if they ask nothing, valid and test too.
    """
    sizes_of(task)
    # Drawing whole splits takes seconds; four episodes show most mistakes at once.
    generator = random_generator(seed, TRIAL_STREAM)
    if not checked_episodes(task, generator, NUM_TRIED).num_answers:
        held_out(task, seed)


def random_generator(seed: int, *key: int) -> np.random.Generator:
    """Random numbers for one use of a seed."""
    check_integer("seed", seed, minimum=0, example=1)
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=key))


def fingerprints(episodes: Episodes) -> Fingerprints:
    """A 64-bit number for the inputs of each episode.

    It is the sum over tokens of the symbol times a random 64-bit weight of its position. Different
    episodes collide with a chance of about 2^-63; a collision costs one needless redraw.
    """
    lengths = episodes.lengths
    # The weights are the same in every process and version: fingerprints of a seed never change.
    weights = np.random.default_rng(0).integers(
        2**64, size=lengths.max(initial=0), dtype=np.uint64, endpoint=False
    )
    # Symbol 0 must count too: otherwise an episode would equal its prefixes.
    symbols = (episodes.inputs + 1).astype(np.uint64)
    if np.all(lengths == weights.size):
        # [episodes, length] · [length], modulo 2^64.
        prints: Fingerprints = symbols.reshape(len(episodes), weights.size) @ weights
        return prints
    offsets = ragged_range(np.zeros_like(lengths), lengths)
    return np.add.reduceat(symbols * weights[offsets], episodes.starts)


def _draw(
    task: Task,
    seed: int,
    key: tuple[int, ...],
    num_episodes: int,
    forbidden: Fingerprints,
    *,
    distinct: bool,
) -> Episodes:
    """Episodes that are not forbidden and, if `distinct`, all different."""
    kept: list[Episodes] = []
    missing = num_episodes
    for attempt in range(NUM_ATTEMPTS):
        # A number of its own for each attempt: what is drawn does not depend on how many failed.
        generator = random_generator(seed, *key, attempt)
        fresh = checked_episodes(task, generator, missing if attempt == 0 else NUM_REDRAWN)
        prints = fingerprints(fresh)
        is_new = ~np.isin(prints, forbidden)
        if distinct:
            # Of equal episodes in one draw the first is kept, and later draws avoid all of them.
            is_first = np.zeros_like(is_new)
            is_first[np.unique(prints, return_index=True)[1]] = True
            is_new &= is_first
            forbidden = np.concatenate([forbidden, prints])
        chosen = np.flatnonzero(is_new)[:missing]
        kept.append(fresh if chosen.size == len(fresh) else fresh.take(chosen))
        missing -= len(kept[-1])
        if missing == 0:
            return Episodes.concatenate(kept)
    found = f"{num_episodes - missing} of {num_episodes} in {NUM_ATTEMPTS} draws of {task.name}"
    remedy = "use longer episodes, or lower num_valid and num_test"
    raise input_error("splits must have enough different episodes to share none", found, remedy)


def _check_asks(task: Task, name: Split, episodes: Episodes) -> None:
    if not episodes.num_answers:
        rule = f"the {name} split of {task.name} must ask for an answer"
        received = f"{episodes.num_tokens} targets that are all IGNORED"
        remedy = "let generate put answers among the targets, or let the split have more episodes"
        raise input_error(rule, received, remedy)


class Endless:
    """Fresh episodes without end, none of them in valid or test.

    Block k of BLOCK_SIZE episodes depends on the seed and k alone, and is drawn without those
    before it. The blocks of the last look-up are held: lanes advance together.
    """

    def __init__(self, task: Task, seed: int) -> None:
        self._task, self._seed = task, seed
        self._forbidden = np.concatenate([fingerprints(part) for part in held_out(task, seed)])
        self._blocks: dict[int, Episodes] = {}
        self._held: Episodes | None = None

    def find(self, numbers: Integers) -> tuple[Episodes, Integers]:
        """Episodes that include those with these numbers, and the index of each."""
        first, last = int(numbers.min()) // BLOCK_SIZE, int(numbers.max()) // BLOCK_SIZE
        needed = list(range(first, last + 1))
        if self._held is None or list(self._blocks) != needed:
            self._blocks = {one: self._blocks.get(one) or self._block(one) for one in needed}
            self._held = Episodes.concatenate(list(self._blocks.values()))
        return self._held, numbers - first * BLOCK_SIZE

    def _block(self, number: int) -> Episodes:
        key = (TRAIN_STREAM, number)
        return _draw(self._task, self._seed, key, BLOCK_SIZE, self._forbidden, distinct=False)


class Epochs:
    """The same episodes again and again, in another order in each epoch.

    Episode number n is in epoch n // len(episodes). The order of an epoch depends on the seed and
    the number of the epoch alone.
    """

    def __init__(self, episodes: Episodes, seed: int) -> None:
        self._episodes, self._seed = episodes, seed

    def find(self, numbers: Integers) -> tuple[Episodes, Integers]:
        """Episodes that include those with these numbers, and the index of each."""
        epochs, offsets = np.divmod(numbers, len(self._episodes))
        indices = np.empty_like(offsets)
        for epoch in np.unique(epochs).tolist():
            here = epochs == epoch
            indices[here] = epoch_order(self._seed, epoch, len(self._episodes))[offsets[here]]
        return self._episodes, indices


# Episodes 0, 1, 2, ... without end. A number always means the same episode: a position in a source
# is a number, and nothing else has to be saved.
EpisodeSource: TypeAlias = Endless | Epochs


@lru_cache(maxsize=16)
def epoch_order(seed: int, epoch: int, num_episodes: int) -> Integers:
    """The order of the episodes in one epoch."""
    return random_generator(seed, EPOCH_STREAM, epoch).permutation(num_episodes)


def training_source(task: Task, seed: int) -> EpisodeSource:
    """The training data of a task: epochs of its train split, or endless if that has no size."""
    if sizes_of(task).train is None:
        return Endless(task, seed)
    return Epochs(split(task, "train", seed), seed)


def sizes_of(task: Task) -> SplitSizes:
    """The split sizes of a task, checked."""
    sizes = _member(task, "split_sizes", lambda: task.split_sizes)
    example = "return for example SplitSizes(valid=1000, test=1000)"
    return _checked(sizes, SplitSizes, f"split_sizes of {type(task).__name__} must be", example)


def with_length(task: Task, length: int) -> Task:
    """The task with episodes of another length, which it may refuse by a ValueError."""
    found = _member(task, "with_length", lambda: task.with_length(length), ValueError)
    example = "return for example replace(self, length=length)"
    rule = f"with_length of {type(task).__name__} must return a"
    return _checked(found, Task, rule, example)  # type: ignore[type-abstract]


def checked_episodes(task: Task, generator: np.random.Generator, num_episodes: int) -> Episodes:
    """What a task generates, checked against what it declares."""
    num_inputs = _member(task, "input_symbols", lambda: task.num_inputs)
    num_outputs = _member(task, "output_symbols", lambda: task.num_outputs)
    closing_symbol = _member(task, "closing_symbol", lambda: task.closing_symbol)
    if closing_symbol is not None:
        last = num_inputs - 1
        check_integer("closing_symbol", closing_symbol, minimum=0, maximum=last, example=last)
    found = _member(task, "generate", lambda: task.generate(generator, num_episodes))
    example = "return for example Episodes.from_grid(inputs, targets)"
    rule = f"generate of {type(task).__name__} must return"
    episodes = _checked(found, Episodes, rule, example)
    if len(episodes) != num_episodes:
        rule = f"generate of {task.name} must give the {num_episodes} episodes asked for"
        raise input_error(rule, len(episodes), "let Episodes.starts have one entry per episode")
    for name, symbols, lowest, count in (
        ("input", episodes.inputs, 0, num_inputs),
        ("output", episodes.targets, IGNORED, num_outputs),
    ):
        if symbols.min() < lowest or symbols.max() >= count:
            rule = f"every {name} of {task.name} must be from {lowest} to {count - 1}"
            received = f"{symbols.min()} to {symbols.max()}"
            raise input_error(rule, received, f"name every symbol in {name}_symbols")
    return episodes


def _member(
    task: Task, name: str, get: Callable[[], Value], allowed: type[Exception] = InputError
) -> Value:
    """The value of a member of a task. Errors in its code, except allowed ones, are one line."""
    try:
        return get()
    except (allowed, MemoryError):
        raise
    except Exception as error:
        rule = f"{name} of {type(task).__name__} must run without error"
        # The first two frames are this one and `get`.
        frames = traceback.extract_tb(error.__traceback__)[2:]
        place = f" (line {frames[0].lineno} of {Path(frames[0].filename).name})" if frames else ""
        raise input_error(rule, f"{one_line(error)}{place}", "correct it in the class") from error


def _checked(value: object, kind: type[Value], rule: str, remedy: str) -> Value:
    if isinstance(value, kind):
        return value
    received = f"{reprlib.repr(value)} of type {type(value).__name__}"
    raise input_error(f"{rule} {kind.__name__}", "None" if value is None else received, remedy)
