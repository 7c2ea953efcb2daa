"""The picture as data: it shows what the timetable says, all of it and nothing else."""

from collections import Counter

import pytest
from gallery import ALTERNATE, GALLERY, ORDERS, name_of
from hypothesis import given
from hypothesis import strategies as st

from staircase_attention.drawing import Box, Row, picture
from staircase_attention.drawing.picture import pass_colours
from staircase_attention.schedules import (
    CachedStaircase,
    FeedbackTransformer,
    GlobalCachedStaircase,
    Ladder,
    MemoryNetwork,
    Order,
    Schedule,
    Staircase,
    TransformerXL,
    UniversalTransformer,
)


def glyphs(row: Row) -> str:
    """A row in shorthand: q, c or k for the kind, the column, the pass, and ! if it leaves."""
    return " ".join(
        f"{box.kind[0]}{box.columns.start}:{box.pass_number}{'!' if box.leaves else ''}"
        for box in row.boxes
    )


EXAMPLES = {
    "a staircase fills its window, moves on and runs empty": (
        picture(Staircase(chunk_size=2, num_passes=2), num_tokens=6),
        ["q0:1", "q0:2! q1:1", "q1:2! q2:1", "q2:2!"],
    ),
    "frozen chunks have the pass they were frozen after": (
        picture(CachedStaircase(chunk_size=1, num_window_chunks=3, num_passes=1), num_tokens=4),
        ["q0:1!", "c0:1 q1:1!", "c0:1 c1:1 q2:1!", "c1:1 c2:1 q3:1!"],
    ),
    "a memory network sees tokens as embedded": (
        picture(MemoryNetwork(span=2), num_tokens=3),
        ["q0:1!", "c0:0 q1:1!", "c1:0 q2:1!"],
    ),
    "a global window never lets go": (
        picture(GlobalCachedStaircase(chunk_size=1, num_passes=1), num_tokens=3),
        ["q0:1!", "c0:1 q1:1!", "c0:1 c1:1 q2:1!"],
    ),
    "repeated layers are rows of their own": (
        picture(Ladder(num_passes=2, span=3, order="AABB"), num_tokens=4),
        ["q0:1", "q0:2", "q0:1", "q0:2!"],
    ),
    "chunk order shows what earlier goes left behind": (
        picture(Staircase(chunk_size=2, num_passes=2), num_tokens=4, order="chunk"),
        ["q0:1", "q0:2!", "k0:2 q1:1", "q1:2!"],
    ),
    "a ladder in chunk order keeps no more than its span": (
        picture(Ladder(num_passes=1, span=2), num_tokens=3, order="chunk"),
        ["q0:1!", "k0:1 q1:1!", "k1:1 q2:1!"],
    ),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_rows_have_the_boxes_of_their_steps(name: str):
    drawn, expected = EXAMPLES[name]
    assert [glyphs(row) for row in drawn.rows] == expected


def test_rows_are_labelled_by_step_layer_and_part():
    drawn, _ = EXAMPLES["repeated layers are rows of their own"]
    labels = ["step 1 · layer 1", "step 2 · layer 1", "step 3 · layer 2", "step 4 · layer 2"]
    assert [row.label for row in drawn.rows] == labels
    drawn, _ = EXAMPLES["chunk order shows what earlier goes left behind"]
    labels = ["go 1 · step 1", "go 2 · step 2", "go 3 · step 2", "go 4 · step 3"]
    assert [row.label for row in drawn.rows] == labels


def test_a_ladder_is_one_block_per_row_and_notes_what_a_token_sees():
    drawn = picture(Ladder(num_passes=2, span=3), num_tokens=4)
    first = Box(kind="query", columns=range(4), pass_number=1)
    second = Box(kind="query", columns=range(4), pass_number=2, leaves=True)
    assert [row.boxes for row in drawn.rows] == [(first,), (second,)]
    assert "A token sees 3 positions, its own the last." in drawn.notes


@st.composite
def walks(draw: st.DrawFn) -> tuple[Schedule, int, Order]:
    schedule = draw(st.sampled_from(GALLERY))
    num_tokens = draw(st.integers(1, 7 * schedule.chunk_length))
    return schedule, num_tokens, draw(st.sampled_from(ORDERS))


@given(walks())
def test_every_query_of_the_timetable_is_drawn_exactly_once(walk: tuple[Schedule, int, Order]):
    schedule, num_tokens, order = walk
    drawn = picture(schedule, num_tokens, order=order, num_layers=1)
    steps = list(schedule.steps(range(num_tokens), num_layers=1, order=order))
    expected = [
        [(cell.tokens.start // schedule.chunk_length, cell.pass_number) for cell in step.cells]
        for step in steps
    ]
    queries = [
        [(box.columns.start, box.pass_number) for box in row.boxes if box.kind == "query"]
        for row in drawn.rows
    ]
    assert queries == expected


@given(walks())
def test_every_chunk_leaves_exactly_once_and_is_no_query_after(walk: tuple[Schedule, int, Order]):
    schedule, num_tokens, order = walk
    drawn = picture(schedule, num_tokens, order=order)
    left: Counter[int] = Counter()
    for row in drawn.rows:
        for box in row.boxes:
            if box.kind == "query":
                assert not any(left[column] for column in box.columns)
        left.update(column for box in row.boxes if box.leaves for column in box.columns)
    assert left == Counter(range(len(drawn.columns)))


@given(walks())
def test_the_boxes_of_a_row_are_what_its_step_sees(walk: tuple[Schedule, int, Order]):
    schedule, num_tokens, order = walk
    for row in picture(schedule, num_tokens, order=order).rows:
        columns = [column for box in row.boxes for column in box.columns]
        assert columns == sorted(set(columns))
        if schedule is ALTERNATE:
            cached = [box for box in row.boxes if box.kind == "cached"]
            assert all(box.columns.start % 2 for box in cached)
        else:
            assert columns == list(row.outline)


@pytest.mark.parametrize("schedule", GALLERY, ids=name_of)
def test_left_alone_a_picture_shows_a_full_window_that_moves(schedule: Schedule):
    drawn = picture(schedule)
    assert 3 <= len(drawn.columns) <= 12
    outlines = [len(row.outline) for row in drawn.rows]
    if isinstance(schedule, Staircase):
        assert outlines.count(schedule.num_passes) >= 3


def test_left_alone_a_window_wider_than_any_picture_is_said_to_be_growing():
    assert "The window is still growing at x₆." in picture(FeedbackTransformer(span=512)).notes
    assert not any("growing" in note for note in picture(FeedbackTransformer(span=4)).notes)


def test_a_last_chunk_that_is_not_full_says_so():
    drawn = picture(Staircase(chunk_size=4, num_passes=2), num_tokens=9)
    assert drawn.columns[-1] == range(8, 9)
    assert "x₃ holds 1 of 4 tokens." in drawn.notes


def test_title_and_caption_give_the_schedule_and_its_words_in_the_paper():
    drawn = picture(Staircase(chunk_size=64, num_passes=4))
    assert drawn.title == "staircase chunk_size=64 num_passes=4"
    assert drawn.caption == "recurrent steps 4, step size 256, forward size 64"
    assert picture(TransformerXL(span=6)).caption == (
        "recurrent steps -, step size -, forward size -"
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_tokens": 0}, r"num_tokens must be an integer of at least 1, got 0; use"),
        ({"num_tokens": 2.5}, r"num_tokens must be an integer of at least 1, got 2\.5; use"),
        ({"num_layers": True}, r"num_layers must be an integer of at least 1, got True; use"),
        ({"order": "sideways"}, r"order must be one of window, chunk, got 'sideways'; "),
        ({"num_tokens": 10**9}, r"at most 40 columns, got 500000000 for Staircase.*; draw fewer"),
    ],
)
def test_a_request_that_cannot_be_drawn_is_refused_in_one_line(options: dict, message: str):
    with pytest.raises(ValueError, match=message):
        picture(Staircase(chunk_size=2, num_passes=3), **options)


def test_a_picture_that_is_too_large_is_refused_before_it_is_made():
    with pytest.raises(ValueError, match=r"at most 96 rows, got more for Ladder.*; draw fewer"):
        picture(Ladder(num_passes=10**12, span=3))


def test_a_core_that_the_schedule_cannot_drive_is_refused():
    with pytest.raises(ValueError, match="num_layers = 1, got 2"):
        picture(UniversalTransformer(num_passes=2, span=4), num_layers=2)


def luminance(colour: str) -> float:
    """Relative luminance by the Web Content Accessibility Guidelines: 0 for black, 1 for white."""
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return sum(weight * p for weight, p in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize("num_passes", [1, 2, 3, 8, 40])
def test_passes_grow_darker_and_their_numbers_can_be_read(num_passes: int):
    colours = [pass_colours(number, num_passes) for number in range(1, num_passes + 1)]
    lightness = [luminance(fill) for fill, _ in colours]
    assert lightness == sorted(lightness, reverse=True)
    assert len(set(lightness)) == min(num_passes, 8)
    for fill, ink in colours:
        dark, light = sorted((luminance(fill), luminance(ink)))
        assert (light + 0.05) / (dark + 0.05) >= 4.5
