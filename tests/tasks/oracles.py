"""Slow twins of the task generators: they read the words of an episode and answer for themselves.

Written from the description of the tasks, not from the generators, and sharing no code with them.
"""

import random

HIGHEST = 10
COMPASS = {"north": -1, "south": 1, "east": 1j, "west": -1j}


def walk_answers(words, *, height, width, walls, start, heading):
    """Cells of an agent; a place is row + 1j * column, a heading the step that a move makes."""
    home = 0 if start == "corner" else height // 2 + 1j * (width // 2)
    place, facing, answers = None, None, []
    for word in words:
        if word == "START":
            place, facing = home, COMPASS[heading]
            answers.append(None)
            continue
        if word == "left":
            facing = facing * 1j
        elif word == "right":
            facing = facing * -1j
        else:
            ahead = place + facing
            if walls == "wrap":
                place = ahead.real % height + 1j * (ahead.imag % width)
            elif 0 <= ahead.real < height and 0 <= ahead.imag < width:
                place = ahead
        answers.append(f"{int(place.real)},{int(place.imag)}")
    return answers


def product_answers(words):
    """Follow every point through the permutations read so far."""
    answers, where = [], None
    for word in words:
        if word == "START":
            where = None
            answers.append(None)
            continue
        if where is None:
            where = {point: point for point in sorted(word)}
        where = {point: word[int(place) - 1] for point, place in where.items()}
        answers.append("".join(where.values()))
    return answers


def program_answers(words, names):
    """Interpret a program, asserting that every statement is allowed where it stands."""
    values, answers, line = {}, [], []
    for word in words:
        if word != ";":
            answers.append(None)
            line.append(word)
            continue
        answers.append(interpret(line, values, names))
        line = []
    assert line == ["END"], "a program is statements and then END"
    return answers


def interpret(line, values, names):
    """Execute one statement; return what it prints, or None."""
    if line[0] == "print":
        _, name = line
        return str(values[name])
    if line[0] == "if":
        _, left, sign, right, colon, *body = line
        assert colon == ":"
        assert sign in "<>"
        assert left != right
        compared = values[right] if right in names else int(right)
        assert 1 <= compared <= HIGHEST
        holds = values[left] > compared if sign == ">" else values[left] < compared
        assert body[0] in names, "an if guards neither an if nor a print"
        # A copy takes the change when the condition is false: the statement must be allowed.
        interpret(body, values if holds else dict(values), names)
        return None
    name, operator, *constant = line
    assert name in names
    if operator == "=":
        assert name not in values, "assigned only once"
        values[name] = int(constant[0])
    else:
        values[name] += {"++": 1, "--": -1}[operator]
    assert 1 <= values[name] <= HIGHEST
    return None


def program_by_rejection(chance: random.Random, *, names, num_statements, distribution):
    """A random program by the rules: draw a statement, and again if not allowed."""
    values, words = {}, []
    for _ in range(num_statements):
        pool = list(values) if distribution == "authors" else names
        line = None
        while line is None:
            kind = chance.choice(["=", "++", "--", "if", "print"])
            line = propose(kind, chance, values, names, pool)
        interpret(line, values, names)
        words += [*line, ";"]
    return [*words, "END"]


def propose(kind, chance, values, names, pool):
    """One draw of a statement of a kind, None if it is not allowed.

    An assignment draws from the names that have no value, anything else from the pool.
    """
    if kind == "=":
        unset = [name for name in names if name not in values]
        return [chance.choice(unset), "=", str(chance.randint(1, HIGHEST))] if unset else None
    if not pool or (name := chance.choice(pool)) not in values:
        return None
    if kind == "print":
        return ["print", name]
    if kind in ("++", "--"):
        limit = HIGHEST if kind == "++" else 1
        return [name, kind] if values[name] != limit else None
    other = str(chance.randint(1, HIGHEST))
    if chance.random() < 0.5:
        others = [another for another in pool if another != name]
        if not others or (other := chance.choice(others)) not in values:
            return None
    body = None
    while body is None:
        body = propose(chance.choice(["=", "++", "--"]), chance, values, names, pool)
    return ["if", name, chance.choice("<>"), other, ":", *body]
