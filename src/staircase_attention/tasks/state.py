"""Tasks that ask for a state: open brackets, variables, objects in boxes, the board of a game."""

from dataclasses import dataclass, field

import numpy as np

from staircase_attention.tasks.strings import DIGITS, Drawn, StringTask, from_top

KINDS = ("()", "[]", "{}", "<>")
# Tokens of a statement, and of a sentence; a length that is no multiple is rounded up.
SENTENCE = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class Dyck(StringTask):
    """The beginning of a balanced word; the answer is the brackets that close it, then END.

    With nothing open a bracket opens, with `depth` open one closes, otherwise either with chance
    1/2; the kind of an opening bracket is uniform.

    START [ ] < < > > < ? [>] ? [END]
    """

    num_kinds: int = field(default=4, metadata={"maximum": len(KINDS)})
    """k: kinds of brackets, 1 to 4."""
    depth: int = 5
    """m: brackets open at once, at most."""

    @property
    def letters(self) -> tuple[str, ...]:  # type: ignore[override]
        """Opening brackets, then closing ones."""
        return tuple(pair[side] for side in (0, 1) for pair in KINDS[: self.num_kinds])

    @property
    def answers(self) -> tuple[str, ...]:  # type: ignore[override]
        """Closing brackets and END."""
        return (*self.letters[self.num_kinds :], "END")

    def _draw(self, generator: np.random.Generator, length: int, count: int) -> Drawn:
        kinds = generator.integers(self.num_kinds, size=(length, count))
        wishes = generator.integers(2, size=(length, count))
        strings = np.empty((count, length), dtype=np.int64)
        rows, top = np.arange(count), np.zeros(count, dtype=np.int64)
        opened = np.zeros((count, min(self.depth, length) + 1), dtype=np.int64)
        for place in range(length):
            opens = (top == 0) | ((top < self.depth) & (wishes[place] == 1))
            opened[rows[opens], top[opens]] = kinds[place][opens]
            closed = self.num_kinds + opened[rows, top - 1]
            strings[:, place] = np.where(opens, kinds[place], closed)
            top += np.where(opens, 1, -1)
        return strings, from_top(opened, top, self.num_kinds)


class SwapProgram(StringTask):
    """Words of S5 as program text: five variables hold 0 to 4, and every statement swaps two.

    The answers are the values of a, b, c, d and e at the end.

    START swap c b ; swap c b ; ? [0] ? [1] ? [2] ? [3] ? [4]
    """

    letters = ("a", "b", "c", "d", "e", "swap", ";")
    answers = DIGITS

    def _draw(self, generator: np.random.Generator, length: int, count: int) -> Drawn:
        shape, num_names, rows = (-(-length // SENTENCE), count), len(DIGITS), np.arange(count)
        one = generator.integers(num_names, size=shape)
        other = (one + generator.integers(1, num_names, size=shape)) % num_names
        values = np.tile(np.arange(num_names), (count, 1))
        for left, right in zip(one, other, strict=True):
            values[rows, left], values[rows, right] = values[rows, right], values[rows, left]
        fixed = np.full(shape, num_names)
        # [sentences, rows, tokens] in the order of reading.
        text = np.stack([fixed, one, other, fixed + 1], axis=2)
        return text.transpose(1, 0, 2).reshape(count, -1), values


OBJECTS = ("key", "coin", "ball", "ring")
BOXES = ("red", "green", "blue", "black")
PUT, POUR, SWAP = range(3)
FIRST_OBJECT = 5
FIRST_BOX = FIRST_OBJECT + len(OBJECTS)


class Boxes(StringTask):
    """Which object is in which box after a story: the boxes of key, coin, ball and ring.

    At first the key is in the red box, the coin in the green one, the ball in the blue one, the
    ring in the black one. `put key in red` moves an object, `pour red in blue` all that a box
    holds, and `swap red with blue` exchanges what two boxes hold.

    START pour black in red pour black in red ? [red] ? [green] ? [blue] ? [red]
    """

    letters = ("put", "pour", "swap", "in", "with", *OBJECTS, *BOXES)
    answers = BOXES

    def _draw(self, generator: np.random.Generator, length: int, count: int) -> Drawn:
        shape, num_boxes = (-(-length // SENTENCE), count), len(BOXES)
        kind, first = generator.integers(3, size=shape), generator.integers(num_boxes, size=shape)
        last = (first + generator.integers(1, num_boxes, size=shape)) % num_boxes
        # The first word of `put` is an object, of which there are as many as boxes.
        last = np.where(kind == PUT, generator.integers(num_boxes, size=shape), last)
        # [objects, rows]: the box of each.
        places = np.tile(np.arange(num_boxes)[:, None], count)
        objects = np.arange(len(OBJECTS))[:, None]
        for what, source, goal in zip(kind, first, last, strict=True):
            is_source, is_goal = places == source, places == goal
            moves = np.where(what == PUT, objects == source, is_source)
            places = np.where(moves, goal, np.where((what == SWAP) & is_goal, source, places))
        subject = np.where(kind == PUT, FIRST_OBJECT, FIRST_BOX) + first
        joined = np.where(kind == SWAP, self.letters.index("with"), self.letters.index("in"))
        text = np.stack([kind, subject, joined, FIRST_BOX + last], axis=2)
        return text.transpose(1, 0, 2).reshape(count, -1), places.T


SIDE = 3
CELLS = tuple(f"{column}{row}" for row in range(1, SIDE + 1) for column in "abc")
EMPTY, WHITE, BLACK = range(3)
# All moves from a cell to one beside, above or below it.
FROM, TO = np.array(
    [
        (one, other)
        for one in range(SIDE**2)
        for other in range(SIDE**2)
        if abs(one // SIDE - other // SIDE) + abs(one % SIDE - other % SIDE) == 1
    ]
).T
PASS = len(CELLS)


class Morris(StringTask):
    """What is on each cell after a game of three men's morris, played without an end.

    The rules:

    - The board has the cells a1 to c3. White begins with stones on a1, b1 and c1, Black has stones
      on a3, b3 and c3.
    - The players take turns, White first. A player slides a stone of his own to an empty cell
      beside, above or below it. A move is written as the cell that it leaves and the one it enters.
    - A player who cannot move writes `pass pass`.

    Moves are drawn uniformly from those allowed. A move does not tell whose stone it is: that
    follows from the number of moves, or from the board. The answers are the cells from a1, b1, c1
    to c3.

    START a1 a2 c3 c2 ? [.] ? [white] ? [white] ? [white] ? [.] ? [black] ? [black] ? [black] ? [.]
    """

    letters = (*CELLS, "pass")
    answers = (".", "white", "black")

    def _draw(self, generator: np.random.Generator, length: int, count: int) -> Drawn:
        num_moves, rows = -(-length // 2), np.arange(count)
        board = np.full((count, SIDE**2), EMPTY)
        board[:, :SIDE], board[:, -SIDE:] = WHITE, BLACK
        strings = np.empty((count, 2 * num_moves), dtype=np.int64)
        luck = generator.random((num_moves, count, FROM.size))
        for number in range(num_moves):
            stone = (WHITE, BLACK)[number % 2]
            # [rows, moves]; of the allowed ones, the one with the highest random number.
            is_allowed = (board[:, FROM] == stone) & (board[:, TO] == EMPTY)
            move, can_move = (luck[number] * is_allowed).argmax(axis=1), is_allowed.any(axis=1)
            for column, (cells, content) in enumerate(((FROM, EMPTY), (TO, stone))):
                board[rows[can_move], cells[move[can_move]]] = content
                strings[:, 2 * number + column] = np.where(can_move, cells[move], PASS)
        return strings, board
