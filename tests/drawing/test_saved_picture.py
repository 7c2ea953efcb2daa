"""Pictures on disk: real SVG and PNG, written whole or not at all."""

import struct
import xml.etree.ElementTree as ElementTree
from collections import Counter
from dataclasses import replace
from pathlib import Path

import matplotlib
import pytest
from gallery import GALLERY, name_of

from staircase_attention.drawing import figure, picture, save_picture
from staircase_attention.schedules import (
    CachedStaircase,
    GlobalCachedStaircase,
    Ladder,
    Schedule,
    Staircase,
)

SMALL = Staircase(chunk_size=2, num_passes=2)


def texts(path: Path) -> list[str]:
    root = ElementTree.parse(path).getroot()
    return ["".join(text.itertext()) for text in root.iter("{http://www.w3.org/2000/svg}text")]


def png_size(path: Path) -> tuple[int, int]:
    content = path.read_bytes()
    assert content.startswith(b"\x89PNG\r\n\x1a\n")
    return struct.unpack(">II", content[16:24])


@pytest.mark.parametrize("schedule", GALLERY, ids=name_of)
def test_an_svg_is_well_formed_and_its_text_is_text(tmp_path: Path, schedule: Schedule):
    drawn = picture(schedule)
    save_picture(drawn, tmp_path / "picture.svg")
    written = Counter(texts(tmp_path / "picture.svg"))
    assert written >= Counter(str(box.pass_number) for box in drawn.boxes)
    assert written >= Counter([drawn.caption, *(row.label for row in drawn.rows), "x₁"])
    assert drawn.title in " ".join(texts(tmp_path / "picture.svg"))


def test_outputs_and_what_is_kept_are_named(tmp_path: Path):
    save_picture(picture(Ladder(num_passes=2, span=3), num_tokens=5), tmp_path / "ladder.svg")
    assert "y₁…y₅" in texts(tmp_path / "ladder.svg")
    save_picture(picture(SMALL, order="chunk"), tmp_path / "chunks.svg")
    assert "keys and values kept from pass n" in texts(tmp_path / "chunks.svg")


def test_files_are_of_sensible_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    drawn = picture(CachedStaircase(chunk_size=2, num_window_chunks=4, num_passes=2))
    save_picture(drawn, tmp_path / "picture.png")
    assert all(800 <= side <= 2000 for side in png_size(tmp_path / "picture.png"))
    # A long picture has fewer dots per inch.
    monkeypatch.setattr(figure, "MOST_DOTS", 1000)
    save_picture(picture(Ladder(num_passes=12, span=2), num_tokens=2), tmp_path / "tall.png")
    assert 900 < max(png_size(tmp_path / "tall.png")) <= 1000
    drawn = picture(GlobalCachedStaircase(chunk_size=1, num_passes=1), num_tokens=20)
    save_picture(drawn, tmp_path / "large.svg")
    assert (tmp_path / "large.svg").stat().st_size < 250_000


def test_a_title_with_dollar_signs_is_drawn_as_it_is(tmp_path: Path):
    save_picture(replace(picture(SMALL), title="a $x$ b"), tmp_path / "picture.svg")
    assert "a $x$ b" in texts(tmp_path / "picture.svg")


@pytest.mark.parametrize("ending", ["svg", "png"])
def test_the_same_picture_gives_the_same_file(tmp_path: Path, ending: str):
    for name in ("one", "other"):
        save_picture(picture(SMALL), tmp_path / f"{name}.{ending}")
    assert (tmp_path / f"one.{ending}").read_bytes() == (tmp_path / f"other.{ending}").read_bytes()


def test_capitals_are_fine_and_the_settings_of_matplotlib_are_left_as_they_were(tmp_path: Path):
    before = dict(matplotlib.rcParams)
    save_picture(picture(SMALL), str(tmp_path / "PICTURE.SVG"))
    assert texts(tmp_path / "PICTURE.SVG")
    assert dict(matplotlib.rcParams) == before


def test_a_drawing_that_fails_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    target = tmp_path / "picture.svg"
    target.write_text("old")

    def fail(self: Path, *_: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(OSError, match="no space left"):
        save_picture(picture(SMALL), target)
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("picture.pdf", r"saved as .svg or .png, got '.*picture\.pdf'; .* picture\.svg$"),
        ("picture", r"saved as .svg or .png, got '.*picture'; .* picture\.svg$"),
        ("missing/picture.svg", r"must be a file in a folder .*, got .*missing.* \(No such"),
        ("folder.svg", r"must be a file in a folder .*, got .*folder\.svg \(a folder\)"),
    ],
)
def test_a_path_that_cannot_be_written_is_refused_in_one_line(
    tmp_path: Path, path: str, message: str, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "folder.svg").mkdir()
    # The path is checked before the picture is drawn.
    monkeypatch.setattr("staircase_attention.drawing.figure.draw", None)
    with pytest.raises(ValueError, match=message):
        save_picture(picture(SMALL), tmp_path / path)
