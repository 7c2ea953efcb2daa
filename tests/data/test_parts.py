"""Parts that machines prepare on their own, joined, are the corpus of one machine."""

import shutil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_corpora import ALL_TRAIN, SOME, contents, small_bpe, storing, text_of, write_lines
from typer.testing import CliRunner

from staircase_attention.cli.app import app
from staircase_attention.data import (
    BytePairTraining,
    ByteTokeniser,
    Corpus,
    InputError,
    Part,
    TextSource,
    join,
    prepare,
    prepare_text,
)

BPE = small_bpe()
texts = st.lists(
    st.one_of(st.text(max_size=30), st.integers(0, 99).map(lambda n: text_of(n, 30))), max_size=6
)


def write_files(folder, files, text):
    """Lines, of which some are broken, and plain texts."""
    folder.mkdir()
    for number, lines in enumerate(files):
        path = write_lines(folder / f"{number:02d}.jsonl", lines)
        if number % 3 == 1:
            path.write_text(path.read_text() + "broken\n")
        if number % 3 == 2:
            (folder / f"{number:02d}.txt").write_text("\n".join(lines))
    (folder / "text.md").write_text(text)


@settings(max_examples=10, deadline=None)
@given(
    files=st.lists(texts, min_size=1, max_size=6),
    text=st.text("abc \n", min_size=1, max_size=40),
    count=st.integers(1, 6),
    order=st.randoms(use_true_random=False),
    shard_tokens=st.sampled_from([50, 400, 1 << 20]),
    weight=st.sampled_from([1.0, 0.5]),
    uses_bytes=st.booleans(),
)
def test_joined_parts_have_the_bytes_of_one_preparation(
    tmp_path_factory, files, text, count, order, shard_tokens, weight, uses_bytes
):
    folder = tmp_path_factory.mktemp("parts")
    write_files(folder / "raw", files, f"{text} and so on")
    settings = {"tokeniser": ByteTokeniser() if uses_bytes else BPE, "weights": [weight]}
    settings["held_out"] = ALL_TRAIN
    with storing(shard_tokens=shard_tokens):
        try:
            whole = prepare_text(folder / "raw", folder / "whole", **settings)
        except InputError:
            # Of a weight below 1 nothing may be left: joining refuses that as well.
            whole = None
        numbers = list(range(1, count + 1))
        order.shuffle(numbers)
        parts = [
            prepare_text(folder / "raw", folder / "c", part=(number, count), **settings).folder
            for number in numbers
        ]
    if whole is None:
        with pytest.raises(InputError):
            join(parts, folder / "joined")
        return
    joined = join(parts, folder / "joined")
    assert contents(joined.folder) == contents(whole.folder)
    joined.verify()


def test_splits_by_hashes_need_not_be_in_every_part(tmp_path):
    write_files(tmp_path / "raw", [[text_of(9 * a + b) for b in range(9)] for a in range(5)], "w")
    settings = {"tokeniser": BPE, "held_out": SOME}
    whole = prepare_text(tmp_path / "raw", tmp_path / "whole", **settings)
    parts = [
        prepare_text(tmp_path / "raw", tmp_path / "c", part=(number, 7), **settings)
        for number in range(1, 8)
    ]
    assert any(part.splits != whole.splits for part in parts)
    joined = join([part.folder for part in parts], tmp_path / "joined")
    assert contents(joined.folder) == contents(whole.folder)
    # Joining again finds it there.
    assert join([part.folder for part in parts], tmp_path / "joined").splits == joined.splits


@pytest.fixture
def parts(tmp_path):
    """Three parts of a folder."""
    write_files(tmp_path / "raw", [[text_of(3 * a + b) for b in range(3)] for a in range(4)], "w")
    return [prepare_part(tmp_path, number).folder for number in range(1, 4)]


def prepare_part(folder, number, *, count=3, name="c", **settings):
    settings = {"tokeniser": ByteTokeniser(), "held_out": ALL_TRAIN} | settings
    return prepare_text(folder / "raw", folder / name, part=(number, count), **settings)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda folder, parts: parts[:2], "must be there once, got 1, 2;"),
        (lambda folder, parts: [*parts, parts[0]], "once, got 1, 1, 2, 3"),
        (lambda folder, parts: other_settings(folder, parts), "the same settings"),
        (lambda folder, parts: other_inputs(folder, parts), "the same files"),
        (lambda folder, parts: [*parts[:2], whole(folder)], "got a whole corpus, 1, 2"),
        (lambda folder, parts: damaged(parts), "must have the sha256"),
        (lambda folder, parts: [], "got none"),
    ],
)
def test_parts_that_do_not_belong_together_are_refused(tmp_path, parts, change, reason):
    given = change(tmp_path, parts)
    with pytest.raises(InputError, match=reason) as error:
        join(given, tmp_path / "joined")
    assert "\n" not in str(error.value)
    assert not list(tmp_path.glob("joined*"))


def other_settings(folder, parts):
    return [*parts[:2], prepare_part(folder, 3, name="d", tokeniser=BPE).folder]


def other_inputs(folder, parts):
    (folder / "raw" / "zz.txt").write_text("one more")
    return [*parts[:2], prepare_part(folder, 3, name="d").folder]


def whole(folder):
    return prepare_text(
        folder / "raw", folder / "all", tokeniser=ByteTokeniser(), held_out=ALL_TRAIN
    ).folder


def damaged(parts):
    path = next(parts[1].glob("train-0*.bin"))
    path.write_bytes(bytes(path.stat().st_size))
    return parts


@pytest.mark.parametrize(
    ("part", "settings", "reason"),
    [
        ((4, 3), {}, "must be from 1 to 3"),
        ((0, 3), {}, "the part must be from 1 to 3"),
        ((1, 3), {"tokeniser": BytePairTraining(vocab_size=300)}, "train it on a sample first"),
        ((1, 3), {"weights": [2.0]}, "the first of weight 2"),
    ],
)
def test_a_part_that_cannot_be_prepared_is_refused(tmp_path, part, settings, reason):
    write_files(tmp_path / "raw", [["one"]], "w")
    with pytest.raises(InputError, match=reason):
        prepare_part(tmp_path, part[0], count=part[1], **settings)
    assert not list(tmp_path.glob("c*"))


def test_parts_without_a_split_are_refused_before_they_are_joined(tmp_path):
    (tmp_path / "texts").mkdir()
    for name in ("a", "b"):
        (tmp_path / "texts" / f"{name}.txt").write_text("one")
    made = [
        prepare_text(tmp_path / "texts", tmp_path / "out", tokeniser="bytes", part=(number, 2))
        for number in (1, 2)
    ]
    with pytest.raises(InputError, match=r"split valid must have tokens, .* 2 documents in all"):
        join([part.folder for part in made], tmp_path / "out")
    assert not list(tmp_path.glob("out*unfinished"))


def test_several_inputs_are_no_parts(tmp_path):
    write_files(tmp_path / "raw", [["one"]], "w")
    source = TextSource(tmp_path / "raw")
    with pytest.raises(InputError, match="put all files into one folder"):
        prepare(
            [Part(source=source)] * 2,
            tmp_path / "c",
            kind="text",
            tokeniser=ByteTokeniser(),
            part=(1, 2),
        )


def test_a_killed_join_starts_again(tmp_path, parts, monkeypatch):
    from staircase_attention.data import preparation

    monkeypatch.setattr(preparation, "_describe", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        join(parts, tmp_path / "joined")
    monkeypatch.undo()
    join(parts, tmp_path / "joined").verify()
    assert contents(tmp_path / "joined") == contents(whole(tmp_path))


def test_the_commands_prepare_and_join_parts(tmp_path, parts):
    shutil.rmtree(parts[0])
    words = ["prepare", "text", str(tmp_path / "raw"), "--output", str(tmp_path / "c"), "--quiet"]
    words += ["--tokeniser", "bytes", "--valid", "0", "--test", "0"]
    run = CliRunner()
    assert run.invoke(app, [*words, "--part", "1/3"]).exit_code == 0
    names = [str(path) for path in sorted(tmp_path.glob("c.part-*"))]
    assert [name.rpartition(".")[2] for name in names] == [f"part-{n}-of-3" for n in (1, 2, 3)]
    result = run.invoke(app, ["prepare", "join", *names, "--output", str(tmp_path / "joined")])
    assert result.exit_code == 0, result.exception
    assert "train: " in result.stdout
    assert Corpus.open(tmp_path / "joined").splits == ("train",)
    assert "two numbers" in str(run.invoke(app, [*words, "--part", "third"]).exception)
