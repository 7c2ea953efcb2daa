"""All that a picture says in words: labels, caption, legend and notes."""

from collections.abc import Sequence

from staircase_attention.schedules import Order, Schedule, Step

SUBSCRIPTS = str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉")


def title(schedule: Schedule, *, order: Order) -> str:
    """The schedule as one writes it on the command line.

    >>> from staircase_attention.schedules import Staircase
    >>> title(Staircase(chunk_size=64, num_passes=4), order="chunk")
    'staircase chunk_size=64 num_passes=4, in chunk order'
    """
    options = schedule.to_dict()
    words = [str(options.pop("name")), *(f"{name}={value}" for name, value in options.items())]
    return " ".join(words) + (", in chunk order" if order == "chunk" else "")


def caption(schedule: Schedule) -> str:
    """The schedule in the words of the paper's tables, with dashes where they print dashes.

    >>> from staircase_attention.schedules import Ladder
    >>> caption(Ladder(num_passes=4, span=256))
    'recurrent steps 4, step size -, forward size -'
    """
    row = schedule.paper_row
    facts = {
        "recurrent steps": row.recurrent_steps,
        "step size": row.step_size,
        "forward size": row.forward_size,
    }
    return ", ".join(f"{word} {'-' if fact is None else fact}" for word, fact in facts.items())


def notes(
    schedule: Schedule, columns: Sequence[range], *, is_still_growing: bool
) -> tuple[str, ...]:
    """What the columns are and what queries see, where the boxes do not show it."""
    chunk, last = schedule.chunk_length, len(columns)
    what = "a token" if chunk == 1 else f"a chunk of {chunk} tokens"
    sentences = [f"Each column is {what}."]
    if len(columns[-1]) < chunk:
        sentences.append(f"{name('x', last)} holds {len(columns[-1])} of {chunk} tokens.")
    if schedule.attention_span is not None:
        sentences.append(
            f"A token sees {counted(schedule.attention_span, 'position')}, its own the last."
        )
    if not schedule.attends_self:
        sentences.append("A token does not see itself.")
    if is_still_growing:
        sentences.append(f"The window is still growing at {name('x', last)}.")
    return tuple(sentences)


def row_label(step: Step, number: int, *, num_layers: int, order: Order) -> str:
    """What a row is called: its step, and what else tells it from its neighbours."""
    label = f"step {step.index + 1}"
    if order == "chunk":
        # A walk by chunks takes a step in several goes, and other steps' goes in between.
        label = f"go {number} · {label}"
    if step.layers != range(num_layers):
        label += f" · layer {counted_from_one(step.layers)}"
    return label


def counted(number: int, word: str) -> str:
    """A number of things.

    >>> counted(1, "token"), counted(2, "token")
    ('1 token', '2 tokens')
    """
    return f"{number} {word}{'' if number == 1 else 's'}"


def counted_from_one(numbers: range) -> str:
    """A run of numbers as people count.

    >>> counted_from_one(range(0, 1)), counted_from_one(range(1, 4))
    ('1', '2-4')
    """
    first, last = numbers.start + 1, numbers.stop
    return str(first) if first == last else f"{first}-{last}"


def name(letter: str, number: int) -> str:
    """A letter with its subscript.

    >>> name("x", 12)
    'x₁₂'
    """
    return letter + str(number).translate(SUBSCRIPTS)


def names(letter: str, columns: range) -> str:
    """The first and the last of a run.

    >>> names("y", range(2, 3)), names("y", range(0, 8))
    ('y₃', 'y₁…y₈')
    """
    first, last = name(letter, columns.start + 1), name(letter, columns.stop)
    return first if first == last else f"{first}…{last}"


def meaning(kind: str, pass_number: int) -> str:
    """What the legend says of a kind of box."""
    frozen = f"cached after pass {pass_number}" if pass_number else "cached as embedded"
    return {
        "query": "query on its pass n",
        "cached": f"{frozen}: keys and values only",
        "kept": "keys and values kept from pass n",
    }[kind]


LEAVES = "leaves with its output"
"""What the legend says of the arrow."""
OUTLINE = "one parallel computation; rows run from bottom to top, time to the right"
"""What the legend says of the outline."""
