"""Slow twins of the suite's tasks: the words of a string go in, the words of its answer come out.

Written from the description of the tasks, not from the generators, and sharing no code with them.
"""

import itertools
import re


def parity_check(words):
    return ["odd" if words.count("b") % 2 else "even"]


def even_pairs(words):
    changes = sum(one != other for one, other in itertools.pairwise(words))
    return ["odd" if changes % 2 else "even"]


def cycle_navigation(words):
    place = 0
    for word in words:
        place += {"stay": 0, "on": 1, "back": 4}[word]
    return [str(place % 5)]


def modular_arithmetic(words):
    assert set("".join(words)) <= set("01234+-*()")
    return [str(eval("".join(words)) % 5)]


def solve_equation(words):
    left, right = "".join(words).split("=")
    solutions = [digit for digit in "01234" if eval(left.replace("z", digit)) % 5 == int(right)]
    assert len(solutions) == 1, "an equation has one solution"
    return solutions


def stack_manipulation(words):
    stack = []
    assert re.fullmatch("([ab] )+(pop |push-[ab] )*", " ".join(words) + " ")
    for word in words:
        if word != "pop":
            stack.insert(0, word[-1])
        elif stack:
            del stack[0]
    return [*stack, "END"]


def reverse_string(words):
    return list(reversed(words))


def duplicate_string(words):
    return words * 2


def odds_first(words):
    numbered = list(enumerate(words, 1))
    return [w for n, w in numbered if n % 2 == 1] + [w for n, w in numbered if n % 2 == 0]


def bucket_sort(words):
    return [digit for digit in "01234" for word in words if word == digit]


def missing_duplicate(words):
    half, hidden = len(words) // 2, words.index("_")
    first, second = words[:half], words[half:]
    wrong = [pair for pair in zip(first, second, strict=True) if pair[0] != pair[1]]
    assert len(wrong) == 1, "only the hidden letter differs"
    return [words[hidden + half if hidden < half else hidden - half]]


def add(left, right):
    """Digit by digit, the lowest first."""
    digits, carry = [], 0
    for place in range(max(len(left), len(right))):
        carry += sum(number[place] for number in (left, right) if place < len(number))
        digits.append(carry % 2)
        carry //= 2
    return [*digits, carry]


def as_answer(digits):
    text = "".join(map(str, digits)).rstrip("0")
    return [*text, "END"]


def operands(words, sign):
    place = words.index(sign)
    return [[int(word) for word in part] for part in (words[:place], words[place + 1 :])]


def binary_addition(words):
    return as_answer(add(*operands(words, "+")))


def binary_multiplication(words):
    left, right = operands(words, "*")
    total = []
    for shift, digit in enumerate(right):
        if digit:
            total = add(total, [0] * shift + left)
    return as_answer(total)


def compute_sqrt(words):
    """One binary digit after another, from the highest."""
    number, size = int("".join(words), 2), (len(words) + 1) // 2
    root = ""
    for place in range(size):
        rest = "0" * (size - place - 1)
        root += "1" if int(f"{root}1{rest}", 2) ** 2 <= number else "0"
    return list(root)


def dyck(words, depth=5):
    """Remove balanced pairs until only what is open remains."""
    text, pairs = "".join(words), {"(": ")", "[": "]", "{": "}", "<": ">"}
    assert all(
        sum(sign in pairs for sign in text[:end]) - sum(sign not in pairs for sign in text[:end])
        <= depth
        for end in range(len(text) + 1)
    )
    while (shorter := re.sub(r"\(\)|\[\]|\{\}|<>", "", text)) != text:
        text = shorter
    return [*(pairs[sign] for sign in reversed(text)), "END"]


def swap_program(words):
    names = dict(zip("abcde", "01234", strict=True))
    for one, other in re.findall(r"swap (\w) (\w) ;", " ".join(words)):
        assert one != other
        names[one], names[other] = names[other], names[one]
    return list(names.values())


def boxes(words):
    held = {"red": {"key"}, "green": {"coin"}, "blue": {"ball"}, "black": {"ring"}}
    text = " ".join(words)
    sentences = re.findall(r"(?:put|pour) \w+ in \w+|swap \w+ with \w+", text)
    assert " ".join(sentences) == text
    for verb, what, _, box in map(str.split, sentences):
        if verb == "put":
            held = {name: things - {what} for name, things in held.items()}
            held[box] |= {what}
        elif verb == "pour":
            held[box], held[what] = held[box] | held[what], set()
        else:
            held[box], held[what] = held[what], held[box]
    order = ("key", "coin", "ball", "ring")
    return [next(name for name in held if thing in held[name]) for thing in order]


def morris(words):
    """Play the game, asserting that every move is allowed."""
    board = {column + row: "." for row in "123" for column in "abc"}
    board |= dict.fromkeys(("a1", "b1", "c1"), "white")
    board |= dict.fromkeys(("a3", "b3", "c3"), "black")
    beside = {"a": "b", "b": "ac", "c": "b", "1": "2", "2": "13", "3": "2"}
    for number in range(0, len(words), 2):
        source, goal = words[number : number + 2]
        player = "black" if number % 4 else "white"
        own = [cell for cell, stone in board.items() if stone == player]
        steps = {
            (cell, other)
            for cell in own
            for other in (
                *(c + cell[1] for c in beside[cell[0]]),
                *(cell[0] + r for r in beside[cell[1]]),
            )
            if board[other] == "."
        }
        if source == "pass":
            assert not steps
            continue
        assert (source, goal) in steps
        board[source], board[goal] = ".", player
    return list(board.values())
