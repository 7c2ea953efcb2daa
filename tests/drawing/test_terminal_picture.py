"""Pictures in the terminal: they fit, and can be read without colour."""

import io
import re

import pytest
from gallery import GALLERY, ORDERS, name_of
from rich.console import Console

from staircase_attention.drawing import Picture, TerminalPicture, picture
from staircase_attention.schedules import (
    CachedStaircase,
    Ladder,
    Order,
    Schedule,
    Staircase,
)


def printed(drawn: Picture, *, width: int = 80, **options: object) -> list[str]:
    file = io.StringIO()
    settings = {"color_system": None, "force_terminal": True, **options}
    Console(file=file, width=width, **settings).print(TerminalPicture(drawn))
    return file.getvalue().splitlines()


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("schedule", GALLERY, ids=name_of)
def test_no_line_is_wider_than_the_terminal_and_no_row_is_broken(schedule: Schedule, order: Order):
    drawn = picture(schedule, order=order)
    lines = printed(drawn)
    assert max(len(line) for line in lines) <= 80
    rows = [re.search(r"│(.*)│", line) for line in lines if re.match(r"(go|step) ", line)]
    numbers = [re.findall(r"\d+", row[1]) for row in rows if row]
    expected = [[str(box.pass_number) for box in row.boxes] for row in reversed(drawn.rows)]
    assert numbers == expected


def test_a_small_picture_looks_like_this():
    drawn = picture(CachedStaircase(chunk_size=2, num_window_chunks=3, num_passes=1), 7)
    assert printed(drawn) == [
        "cached-staircase chunk_size=2 num_window_chunks=3 num_passes=1",
        "step 4       │░░1░░ ░░1░░   1↑ │ ↑ y₄",
        "step 3 │░░1░░ ░░1░░   1↑ │       ↑ y₃",
        "step 2 │░░1░░   1↑ │             ↑ y₂",
        "step 1 │  1↑ │                   ↑ y₁",
        "         x₁    x₂    x₃    x₄",
        "recurrent steps 1, step size 6, forward size 2",
        " 1  query on its pass n   ░1░ cached after pass 1: keys and values only",
        "↑ leaves with its output",
        "│ │ one parallel computation; rows run from bottom to top, time to the right",
        "Each column is a chunk of 2 tokens.   x₄ holds 1 of 2 tokens.",
    ]


def test_a_ladder_is_one_block_per_row():
    lines = printed(picture(Ladder(num_passes=1, span=4), num_tokens=6))
    assert lines[1:3] == [
        "step 1 │                 1↑                │ ↑ y₁…y₆",
        "         x₁    x₂    x₃    x₄    x₅    x₆",
    ]


def test_what_earlier_goes_left_behind_is_dotted():
    lines = printed(picture(Staircase(chunk_size=2, num_passes=2), 4, order="chunk"))
    assert "go 3 · step 2 │··2··   1  │" in lines


def test_columns_draw_together_where_a_terminal_is_narrow():
    drawn = picture(Staircase(chunk_size=2, num_passes=3))
    lines = printed(drawn, width=28)
    assert any(re.fullmatch(r"step 4 +│3↑ 2  1 │ +↑ y₂", line) for line in lines)
    assert max(len(line) for line in lines) <= 28


def test_names_of_columns_never_run_into_each_other():
    lines = printed(picture(Staircase(chunk_size=2, num_passes=2), num_tokens=42), width=80)
    names = next(line for line in lines if line.lstrip().startswith("x₁")).split()
    assert all(re.fullmatch("x[₀-₉]+", name) for name in names)


def test_a_terminal_too_narrow_is_told_how_wide_it_must_be():
    drawn = picture(Staircase(chunk_size=2, num_passes=3))
    with pytest.raises(ValueError, match=r"at least \d+ characters wide, got 20; widen it") as info:
        printed(drawn, width=20)
    needed = int(re.search(r"least (\d+)", str(info.value))[1])
    assert max(len(line) for line in printed(drawn, width=needed)) <= needed


def test_colour_adds_nothing_but_colour():
    drawn = picture(CachedStaircase(chunk_size=2, num_window_chunks=4, num_passes=2))
    coloured = "\n".join(printed(drawn, color_system="truecolor"))
    assert "\x1b[" in coloured
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == "\n".join(printed(drawn))
