"""Finite automata driven by random symbols: many run at once, one table look-up a step."""

import numpy as np
from numpy.typing import NDArray

from staircase_attention.batches import IGNORED
from staircase_attention.tasks.episodes import Episodes, Integers


def run(transitions: Integers, start: int, symbols: Integers) -> Integers:
    """States of many runs of one automaton.

    Args:
        transitions: (num_states, num_symbols) the next state for a state and a symbol.
        start: the state before the first symbol.
        symbols: (num_steps, num_runs) what each run reads; time comes first so that one step
            of all runs lies together in memory.

    Returns:
        (num_steps, num_runs) the state after each symbol.

    >>> flip_or_stay = np.array([[0, 1], [1, 0]])
    >>> run(flip_or_stay, 0, np.array([[1], [0], [1]])).ravel().tolist()
    [1, 1, 0]
    """
    num_symbols = transitions.shape[1]
    # One flat index a step is faster than a pair; the product must not overflow a small type.
    flat = transitions.astype(np.intp).reshape(-1)
    states = np.empty(symbols.shape, dtype=np.int32)
    state: NDArray[np.intp] = np.full(symbols.shape[1], start, dtype=np.intp)
    for step, symbol in enumerate(symbols):
        state = flat[state * num_symbols + symbol]
        states[step] = state
    return states


def episodes(symbols: Integers, answers: Integers) -> Episodes:
    """Episodes that begin with the start symbol, input 0, which asks for nothing.

    Symbols and answers are (num_steps, num_episodes); symbol s becomes input s + 1.
    """
    num_steps, num_episodes = symbols.shape
    inputs = np.zeros((num_episodes, num_steps + 1), dtype=np.int32)
    targets = np.full_like(inputs, IGNORED)
    inputs[:, 1:] = symbols.T
    inputs[:, 1:] += 1
    targets[:, 1:] = answers.T
    return Episodes.from_grid(inputs, targets)
