"""State in words: variables that a program swaps, and objects that a story puts into boxes."""

import numpy as np

from staircase_attention.tasks.strings import DIGITS, Drawn, StringTask

# Tokens of a statement, and of a sentence; a length that is no multiple is rounded up.
SENTENCE = 4


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
