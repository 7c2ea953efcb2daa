"""Morris: the board of a small game from its list of moves."""

import numpy as np

from staircase_attention.tasks.strings import Drawn, StringTask

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
