"""Train, valid and test: fixed by a seed, and never sharing an episode."""

from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from staircase_attention.checks import check_choice, check_integer, input_error
from staircase_attention.tasks.asked import checked_episodes, sizes_of
from staircase_attention.tasks.episodes import Episodes, ragged_range
from staircase_attention.tasks.task import Task

Split = Literal["train", "valid", "test"]
Fingerprints = NDArray[np.uint64]

BLOCK_SIZE = 1_024
"""Training episodes drawn at a time: the fixed grain of a seed's endless sequence."""
NUM_REDRAWN = 256
"""Episodes drawn to replace those that may not be used, however few these are."""
NUM_ATTEMPTS = 100
"""Draws after which a task is held to have too few different episodes."""
NUM_TRIED = 4
"""Episodes by which a task is tried out."""

# First entry of a spawn key, so that no two uses of a seed share random numbers.
VALID_STREAM, TEST_STREAM, TRAIN_STREAM, EPOCH_STREAM, TRIAL_STREAM = range(5)


def split(task: Task, name: Split, seed: int) -> Episodes:
    """The episodes of one split, the same for the same task and seed.

    An episode occurs once in valid and test together, and never in train; equal means equal
    inputs. Train may repeat an episode, as chance will have it.
    """
    check_choice("split", name, get_args(Split))
    if name != "train":
        valid, test = held_out(task, seed)
        return valid if name == "valid" else test
    num_train = sizes_of(task).train
    if num_train is None:
        rule = "a train split must have a size"
        raise input_error(
            rule, f"{task.name} with endless training data", "use Endless(task, seed)"
        )
    forbidden = held_out_fingerprints(task, seed)
    numbers = range(-(-num_train // BLOCK_SIZE))
    blocks = [train_block(task, seed, number, forbidden) for number in numbers]
    train = Episodes.concatenate(blocks).take(np.arange(num_train))
    _check_asks(task, "train", train)
    return train


def held_out(task: Task, seed: int) -> tuple[Episodes, Episodes]:
    """Valid and test: all their episodes differ."""
    nothing = np.empty(0, dtype=np.uint64)
    sizes = sizes_of(task)
    valid = _draw(task, seed, (VALID_STREAM,), sizes.valid, nothing, distinct=True)
    test = _draw(task, seed, (TEST_STREAM,), sizes.test, fingerprints(valid), distinct=True)
    _check_asks(task, "valid", valid)
    _check_asks(task, "test", test)
    return valid, test


def try_out(task: Task, seed: int) -> None:
    """Refuse a task that cannot be trained on: by a few episodes, or by all if these ask nothing.

    What is drawn here is of no split.
    """
    sizes_of(task)
    generator = random_generator(seed, TRIAL_STREAM)
    if not checked_episodes(task, generator, NUM_TRIED).num_answers:
        held_out(task, seed)


def held_out_fingerprints(task: Task, seed: int) -> Fingerprints:
    """What no training episode may be equal to."""
    return np.concatenate([fingerprints(part) for part in held_out(task, seed)])


def train_block(task: Task, seed: int, number: int, forbidden: Fingerprints) -> Episodes:
    """Block `number` of the training data, to be had without those before it.

    The blocks are one unending sequence; a train split of a given size is its beginning.
    """
    return _draw(task, seed, (TRAIN_STREAM, number), BLOCK_SIZE, forbidden, distinct=False)


def random_generator(seed: int, *key: int) -> np.random.Generator:
    """Random numbers for one use of a seed."""
    check_integer("seed", seed, minimum=0, example=1)
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=key))


def fingerprints(episodes: Episodes) -> Fingerprints:
    """A 64-bit number for each episode's inputs.

    Equal episodes have equal fingerprints. Different ones collide with a chance of about 2^-63:
    a sum over the tokens of symbol times a random 64-bit weight that belongs to the place. A
    collision costs one needless redraw and never lets an episode through.
    """
    lengths = episodes.lengths
    weights = np.random.default_rng(0).integers(
        2**64, size=lengths.max(initial=0), dtype=np.uint64, endpoint=False
    )
    symbols = (episodes.inputs + 1).astype(np.uint64)
    if np.all(lengths == weights.size):
        prints: Fingerprints = symbols.reshape(len(episodes), weights.size) @ weights
        return prints
    places = ragged_range(np.zeros_like(lengths), lengths)
    return np.add.reduceat(symbols * weights[places], episodes.starts)


def _draw(
    task: Task,
    seed: int,
    key: tuple[int, ...],
    num_episodes: int,
    forbidden: Fingerprints,
    *,
    distinct: bool,
) -> Episodes:
    """That many episodes that are not forbidden and, if distinct, all different."""
    kept: list[Episodes] = []
    missing = num_episodes
    for attempt in range(NUM_ATTEMPTS):
        generator = random_generator(seed, *key, attempt)
        fresh = checked_episodes(task, generator, missing if attempt == 0 else NUM_REDRAWN)
        prints = fingerprints(fresh)
        is_new = ~np.isin(prints, forbidden)
        if distinct:
            is_new &= _is_first(prints)
            forbidden = np.concatenate([forbidden, prints])
        chosen = np.flatnonzero(is_new)[:missing]
        kept.append(fresh if chosen.size == len(fresh) else fresh.take(chosen))
        missing -= len(kept[-1])
        if missing == 0:
            return Episodes.concatenate(kept)
    found = f"{num_episodes - missing} of {num_episodes} in {NUM_ATTEMPTS} draws of {task.name}"
    remedy = "use longer episodes, or lower num_valid and num_test"
    raise input_error("splits must have enough different episodes to share none", found, remedy)


def _is_first(prints: Fingerprints) -> NDArray[np.bool_]:
    """True where a value occurs for the first time."""
    is_first = np.zeros(prints.size, dtype=np.bool_)
    is_first[np.unique(prints, return_index=True)[1]] = True
    return is_first


def _check_asks(task: Task, name: Split, episodes: Episodes) -> None:
    if not episodes.num_answers:
        rule = f"the {name} split of {task.name} must ask for an answer"
        received = f"{episodes.num_tokens} targets that are all IGNORED"
        remedy = "let generate put answers among the targets, or let the split have more episodes"
        raise input_error(rule, received, remedy)
