"""What a user can get wrong is refused in one line, before any work is done."""

import io
import sys

import pytest
import torch

from staircase_attention.cli import sample as sample_command
from staircase_attention.cli.assignments import parse_assignments, parse_variations
from staircase_attention.data.tokenisers import named_tokeniser

TINY = (
    "training.num_updates=1",
    "training.num_lanes=2",
    "training.evaluation_lanes=2",
    "training.evaluation_tokens=128",
    "model.core.width=16",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where the run of this file is."""
    return tmp_path_factory.mktemp("refused")


@pytest.fixture
def run(staircase, folder, monkeypatch):
    """A model of bytes, trained for the first test that asks for it."""
    monkeypatch.chdir(folder)
    if not (folder / "run").exists():
        (folder / "raw").mkdir()
        for number in range(9):
            (folder / "raw" / f"{number}.txt").write_text(f"{number} it was a dark night.\n" * 9)
        for words in (
            ["prepare", "text", "raw", "--tokeniser", "bytes", "--output", "corpus",
             "--valid", "0.3", "--test", "0.3"],
            ["train", "base-small/staircase", "task.folder=corpus", *TINY, "--output", "run"],
        ):  # fmt: skip
            status, _, err = staircase(*words, "--quiet")
            assert status == 0, err
    return folder / "run"


@pytest.fixture
def refused(staircase):
    """Run a command line that is refused; give the line."""

    def check(*words):
        status, out, err = staircase(*map(str, words))
        assert status == 2, err
        assert out == ""
        assert err.startswith("staircase: ")
        assert len(err.strip().splitlines()) == 1
        return err

    return check


def test_a_past_that_the_text_has_not_is_refused_before_scoring(refused, run):
    line = refused("eval", run, "--past", "0", "--past", "100000")
    assert "got 100000; use a smaller past" in line


def test_a_past_below_zero_is_refused_before_scoring(refused, run):
    assert "at least 0, got -1; use 0" in refused("eval", run, "--past", "-1")


def test_a_resumed_stream_takes_no_settings(staircase, refused, run, tmp_path):
    kept = tmp_path / "kept"
    status, _, err = staircase("sample", str(run), "--max-tokens", "2", "--save", str(kept))
    assert status == 0, err
    options = {
        "--prompt": "a", "--temperature": "1.0", "--top-k": "1", "--top-p": "0.5",
        "--min-p": "0.1", "--repetition-penalty": "1.1", "--stop": "x", "--seed": "0",
    }  # fmt: skip
    for option, value in options.items():
        assert f"got {option} with --resume" in refused(
            "sample", run, "--resume", kept, option, value
        )
    words = [word for pair in options.items() for word in pair]
    assert f"got {', '.join(options)} with" in refused("sample", run, "--resume", kept, *words)
    status, _, err = staircase("sample", str(run), "--resume", str(kept), "--max-tokens", "2")
    assert status == 0, err


def test_a_model_too_large_for_memory_is_refused(refused, tmp_path):
    line = refused(
        "train", "parity/staircase", "training.num_updates=4", "model.core.width=40000000",
        "--output", tmp_path / "run", "--quiet",
    )  # fmt: skip
    assert "more memory than there is" in line


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to\nallocate 64"),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate"),
        MemoryError(),
    ],
)
def test_memory_that_runs_out_is_one_line_whoever_says_so(refused, monkeypatch, error):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(sample_command, "load_language_model", fail)
    assert "more memory than there is; ask for less" in refused("sample", "run")


def test_another_error_of_torch_is_not_hidden(monkeypatch, staircase):
    def fail(*_, **__):
        raise RuntimeError("a mistake of ours")

    monkeypatch.setattr(sample_command, "load_language_model", fail)
    with pytest.raises(RuntimeError, match="a mistake of ours"):
        staircase("sample", "run")


@pytest.mark.parametrize(
    "words",
    [
        ["describe", "staircase", "num_passes=2", "chunk_size=99999999999999999999"],
        ["train", "parity/staircase", "model.schedule.chunk_size=99999999999999999999"],
    ],
)
def test_a_number_of_more_than_64_bits_is_refused(refused, words):
    assert "64 bits, got 99999999999999999999; use" in refused(*words)


@pytest.mark.parametrize("parse", [parse_assignments, parse_variations])
def test_a_large_number_is_found_in_lists_too(parse):
    with pytest.raises(ValueError, match="sizes must be a whole number of at most 64 bits"):
        parse([f"sizes=[1, [{2**63}]]"])
    assert parse([f"size={2**63 - 1}"])


@pytest.mark.parametrize("size", ["9000000000000000000", "4000000000000000000"])
def test_a_size_that_overflows_later_is_one_line_too(refused, size):
    assert "ask for less" in refused("describe", "staircase", "num_passes=2", f"chunk_size={size}")


def test_a_vocabulary_without_bounds_is_refused(refused, folder):
    (folder / "some.txt").write_text("it was a dark and stormy night")
    line = refused("prepare", "text", folder / "some.txt", "--tokeniser", "bpe-99999999999999")
    assert "to 1000000, got 99999999999999; use" in line
    assert named_tokeniser("bpe-1000000").vocab_size == 1_000_000


@pytest.mark.parametrize("words", [[], ["prepare"]])
def test_a_command_without_words_prints_its_help_as_help(staircase, words):
    status, out, err = staircase(*words)
    assert (status, out) == (2, "")
    assert err.startswith("Usage: staircase")
    assert len(err.splitlines()) > 8


def test_a_stream_that_could_not_be_kept_is_not_made(refused, run, tmp_path):
    (tmp_path / "file").touch()
    for path in (tmp_path, tmp_path / "absent" / "kept", tmp_path / "file" / "kept"):
        line = refused("sample", run, "--save", path)
        assert f"--save must be a file in a folder that can be written to, got {path}" in line
        assert "Errno" not in line
    assert "too long" in refused("sample", run, "--save", tmp_path / ("a" * 255))
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_a_stream_is_resumed_from_a_file(refused, run, tmp_path):
    assert f"{tmp_path}, which is no file; give" in refused("sample", run, "--resume", tmp_path)
    absent = tmp_path / "absent"
    assert f"{absent}, which is not there; give" in refused("sample", run, "--resume", absent)


def test_an_export_goes_where_a_folder_can_be(refused, run, tmp_path):
    (tmp_path / "one.txt").touch()
    line = refused("export", run, tmp_path / "one.txt" / "z")
    assert f"where {tmp_path / 'one.txt'} is a file; name another" in line


@pytest.mark.parametrize("kind", ["enwik8", "text", "reddit"])
def test_a_corpus_goes_where_a_folder_can_be(refused, tmp_path, kind):
    (tmp_path / "one.txt").write_text("it was a dark and stormy night")
    file, output = tmp_path / "one.txt", tmp_path / "one.txt" / "z"
    line = refused("prepare", kind, file, "--output", output)
    assert f"--output must be a folder that can be made, got {output}, where {file} is" in line


@pytest.mark.parametrize("option", ["--prompt", "--stop"])
def test_bytes_that_are_no_text_are_refused(refused, run, option):
    line = refused("sample", run, option, "a\udcff\udcfe")
    assert f"{option} must be text in UTF-8, got 'a\\udcff\\udcfe'; write" in line


def test_a_talk_goes_on_after_bytes_that_are_no_text(staircase, run, monkeypatch):
    lines = io.TextIOWrapper(io.BytesIO(b"\xff\xfe\nhello\n\n"), encoding="utf-8")
    monkeypatch.setattr(sys, "stdin", lines)
    status, out, err = staircase("chat", str(run), "--max-tokens", "5")
    assert status == 0, err
    assert out.count("you: ") == 3
    assert out.count("it:  ") == 1
    assert err.count("a turn must be text in UTF-8, got") == 1


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("\\n\\n\\n", "\n\n\n"),
        ("é|", "é|"),
        ("€\\t\\x1e\\u00e9\\\\n\\0", "€\t\x1eé\\n\0"),
        ("\\\\é", "\\é"),
        ("\\N{EURO SIGN}", "€"),
    ],
)
def test_a_separator_has_escapes_and_any_letters(written, meant):
    assert sample_command.unescaped(written) == meant


@pytest.mark.parametrize(
    "written", ["\\", "a\\", "\\q", "\\é", "\\x1", "\\N{NO SUCH}", "\\ud800", "\\U99999999", ""]
)
def test_a_separator_that_means_nothing_is_refused(refused, run, written):
    assert "--separator must" in refused("chat", run, "--separator", written)


def test_an_endless_split_is_not_scored(staircase, refused, tmp_path):
    status, _, err = staircase(
        "train", "parity/lstm", "training.num_updates=1", "--output", str(tmp_path / "run"),
        "--quiet",
    )  # fmt: skip
    assert status == 0, err
    line = refused("eval", tmp_path / "run", "--split", "train")
    assert "got train of permutations" in line
    assert "use valid or test" in line
