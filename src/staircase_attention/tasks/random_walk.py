"""Random Walk: follow an agent on a grid from its actions alone."""

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from staircase_attention.checks import input_error
from staircase_attention.tasks.task import Episodes, SizedTask, reset_episodes, run_automaton

Walls = Literal["block", "wrap"]
Heading = Literal["north", "east", "south", "west"]

ACTIONS = ("left", "right", "forward")
LEFT, RIGHT, FORWARD = range(3)
HEADINGS: tuple[Heading, ...] = get_args(Heading)
# Row and column of one move forward, in the order of HEADINGS: a right turn is one further.
MOVES = ((-1, 0), (0, 1), (1, 0), (0, -1))


@dataclass(frozen=True, kw_only=True, slots=True)
class RandomWalk(SizedTask):
    """An agent on a grid turns left, turns right or moves forward, each with chance 1/3.

    The input is the action, the answer at every action is the cell of the agent after it. An
    episode starts with START, which puts the agent back to its first cell and asks for no answer.
    The paper takes the task from Fan et al. (2020); what neither specifies is an option here, see
    docs/tasks.md.

    >>> task = RandomWalk(length=6, height=3, width=3)
    >>> print(task.show(*task.generate(np.random.default_rng(5), 1)[0]))
    START right [0,0] forward [1,0] forward [2,0] forward [2,0] forward [2,0] forward [2,0]
    """

    length: int = 400
    """Actions in an episode; with START an episode has length + 1 tokens."""
    height: int = field(default=8, metadata={"maximum": 256})
    width: int = field(default=8, metadata={"maximum": 256})
    walls: Walls = "block"
    """At the edge: 'block' stops the agent, 'wrap' moves it to the opposite side."""
    start: Literal["corner", "centre"] = "corner"
    """The first cell: 'corner' is row 0, column 0; 'centre' is row height // 2, column width // 2.
    A random cell would not be known from the input."""
    heading: Heading = "east"
    """The first direction; rows grow to the south, columns to the east."""

    def __post_init__(self) -> None:
        SizedTask.__post_init__(self)
        if self.height * self.width == 1:
            rule = "a grid must have two cells or more"
            raise input_error(rule, "1 x 1", "use for example width=8")

    @property
    def input_symbols(self) -> tuple[str, ...]:
        """START and the three actions."""
        return ("START", *ACTIONS)

    @property
    def output_symbols(self) -> tuple[str, ...]:
        """The cells, row by row, as 'row,column'."""
        return tuple(
            f"{row},{column}" for row in range(self.height) for column in range(self.width)
        )

    def generate(self, generator: np.random.Generator, num_episodes: int) -> Episodes:
        """Independent walks from the same starting place."""
        shape = (self.length, num_episodes)
        actions = generator.integers(len(ACTIONS), size=shape, dtype=np.int8)
        transitions = walk_transitions(self.height, self.width, self.walls)
        row, column = (0, 0) if self.start == "corner" else (self.height // 2, self.width // 2)
        first = (row * self.width + column) * len(HEADINGS) + HEADINGS.index(self.heading)
        return reset_episodes(actions, run_automaton(transitions, first, actions) // len(HEADINGS))


@lru_cache(maxsize=8)
def walk_transitions(height: int, width: int, walls: Walls) -> NDArray[np.int64]:
    """The next state for every state, 4 * cell + heading, and every action.

    >>> walk_transitions(1, 2, "block")[1].tolist()  # cell 0, facing east
    [0, 2, 5]
    """
    state = np.arange(height * width * len(HEADINGS))
    cell, heading = state // len(HEADINGS), state % len(HEADINGS)
    moves = np.array(MOVES)[heading]
    # Where a move forward leads, perhaps off the grid: clipped, or around to the other side.
    row, column = cell // width + moves[:, 0], cell % width + moves[:, 1]
    if walls == "block":
        row, column = row.clip(0, height - 1), column.clip(0, width - 1)
    row, column = row % height, column % width

    transitions = np.empty((state.size, len(ACTIONS)), dtype=np.int64)
    transitions[:, LEFT] = state - heading + (heading - 1) % len(HEADINGS)
    transitions[:, RIGHT] = state - heading + (heading + 1) % len(HEADINGS)
    transitions[:, FORWARD] = (row * width + column) * len(HEADINGS) + heading
    return transitions
