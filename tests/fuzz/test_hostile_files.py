"""Files that somebody made to do harm, and files of a random kind, are refused in one line."""

import json
import os
import shutil
import time
from pathlib import Path

import pytest
import torch
from small_runs import small_recipe

from building import build, random_tokens
from staircase_attention import CachedStaircase, load_state, save_state
from staircase_attention.checks import InputError
from staircase_attention.data import named_tokeniser, train_bpe
from staircase_attention.files import (
    CHECKSUMS,
    inside,
    read_file,
    read_json,
    read_summed,
    write_json,
    write_summed,
)
from staircase_attention.models.state_file import HEADER, take_apart, write_sealed
from staircase_attention.training import load_run, pack, resume, run_path, train

# About 9 seconds of one core.
NUM_CASES = 160


@pytest.mark.slow
def test_random_changes_are_refused_or_do_not_matter(tmp_path):
    """Some of the cases of `make fuzz`, which has tens of thousands."""
    from harness import Fuzzing

    fuzzing = Fuzzing(tmp_path)
    found = [fuzzing.case(number, seed=2026) for number in range(NUM_CASES)]
    failures = [f"{name} {message}" for name, verdict, message in found if verdict == "failure"]
    assert not failures, "\n".join(failures)


def hostile(small_run, tmp_path, *changes):
    """A packed run with other settings, made by somebody who left its checksums out."""
    folder = Path(pack(small_run, tmp_path / "packed"))
    config = read_json(folder / "config.json")
    for path, value in changes:
        *groups, last = path.split(".")
        place = config["recipe"]
        for group in groups:
            place = place[group]
        place[last] = value
    write_json(folder / "config.json", config)
    (folder / CHECKSUMS).unlink()
    return folder


@pytest.mark.parametrize(
    "change",
    [
        ("model.core.width", 10**9),
        ("model.core.num_layers", 10**5),
        ("model.core.max_distance", 10**12),
        ("model.schedule.chunk_size", 10**9),
        ("model", {"kind": "lstm", "width": 10**9, "num_layers": 10**9}),
        ("training", None),
        ("model.core", {}),
    ],
    ids=lambda change: change[0],
)
def test_a_model_larger_than_its_weights_is_refused_before_it_is_built(change, small_run, tmp_path):
    started = time.monotonic()
    with pytest.raises(InputError) as refused:
        load_run(hostile(small_run, tmp_path, change))
    assert "\n" not in str(refused.value)
    assert time.monotonic() - started < 5


def test_a_run_to_resume_that_claims_another_size_is_refused(small_run, tmp_path):
    run = shutil.copytree(small_run, tmp_path / "run")
    (run / "result.json").unlink()
    (run / CHECKSUMS).unlink()
    config = read_json(run / "config.json")
    config["recipe"]["model"]["core"]["width"] = 10**8
    write_json(run / "config.json", config)
    with pytest.raises(InputError, match="weights must fit the model, whose"):
        resume(run)


@pytest.mark.parametrize("place", ["config.json", "checksums.json", "weights.safetensors"])
@pytest.mark.parametrize("kind", ["pipe", "zero", "folder", "gone", "brackets"])
def test_only_regular_files_are_read_and_nothing_is_waited_for(place, kind, small_run, tmp_path):
    folder = Path(pack(small_run, tmp_path / "packed"))
    path = folder / place
    path.unlink()
    make = {
        "pipe": os.mkfifo,
        "zero": lambda path: path.symlink_to("/dev/zero"),
        "folder": Path.mkdir,
        "brackets": lambda path: path.write_text("[" * 100_000),
        "gone": lambda path: None,
    }
    make[kind](path)
    if (place, kind) == ("checksums.json", "gone"):
        assert not load_run(folder).is_verified
        return
    with pytest.raises(InputError) as refused:
        load_run(folder)
    assert "\n" not in str(refused.value)


def test_pack_copies_no_file_from_elsewhere(small_run, tmp_path):
    run = shutil.copytree(small_run, tmp_path / "run")
    (tmp_path / "secret").write_bytes((run / "environment.json").read_bytes())
    (run / "environment.json").unlink()
    (run / "environment.json").symlink_to(tmp_path / "secret")
    with pytest.raises(InputError, match=r"a file must be a regular one, got environment.json"):
        pack(run, tmp_path / "packed")
    assert not (tmp_path / "packed").exists()


@pytest.mark.parametrize("name", ["/etc/hostname", "../x", "a/../../x", "", "a\0b"])
def test_a_manifest_names_files_of_its_own_folder_only(name, tmp_path):
    assert inside(tmp_path, "a/b") == tmp_path / "a" / "b"
    with pytest.raises(InputError, match="must stay inside its folder"):
        inside(tmp_path, name)


def test_a_tokeniser_takes_neither_endless_time_nor_endless_memory(tmp_path):
    (tmp_path / "saved").mkdir()
    train_bpe([b"the cat sat on the mat"], vocab_size=260).save(tmp_path / "saved")
    honest = read_json(tmp_path / "saved" / "tokenizer.json")
    nested = {"type": "Lowercase"}
    for _ in range(32):
        nested = {"type": "Sequence", "normalizers": [nested]}
    large = json.loads(json.dumps(honest))
    large["model"]["vocab"]["the"] = 4_000_000_000
    for plain, message in ((honest | {"normalizer": nested}, "nested"), (large, "4000000000")):
        write_json(tmp_path / "tokenizer.json", plain)
        with pytest.raises(InputError, match=message):
            named_tokeniser(str(tmp_path / "tokenizer.json"))


def test_a_state_with_other_tensors_or_rows_is_refused(tmp_path):
    model = build(CachedStaircase(chunk_size=2, num_window_chunks=2, num_passes=2))
    _, state = model(random_tokens(3, 9))
    header, tensors = take_apart(state)
    path = tmp_path / "state.safetensors"
    fewer = dict(list(tensors.items())[1:])
    twice = header | {"streams": [header["streams"][0] | {"rows": [0, 1, 1]}]}
    for parts in ((header, fewer), (twice, tensors), (header | {"streams": 3}, tensors)):
        write_sealed(path, HEADER, *parts)
        with pytest.raises(InputError, match="a state must be as it was written"):
            load_state(path)
    write_sealed(path, HEADER, header, tensors)
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(InputError, match="its checksum differs"):
        load_state(path)


def test_wrong_calls_are_refused_in_one_line(tmp_path):
    _, state = build(CachedStaircase(chunk_size=2, num_window_chunks=2, num_passes=2))(
        random_tokens(1, 4)
    )
    with pytest.raises(InputError, match="train takes a Recipe, got dict"):
        train({}, tmp_path / "run")
    with pytest.raises(InputError, match=r"second value of a call of the model, got str"):
        save_state("x", tmp_path / "state")
    for call in (lambda: state.to(torch.int64), lambda: state.to(dtype=torch.int64)):
        with pytest.raises(InputError, match=r"must be a floating one.*, got torch.int64"):
            call()
    assert state.to(torch.float16).dtypes == {torch.float16}


def test_a_kill_between_two_writes_leaves_files_that_pass(tmp_path, monkeypatch):
    """Whatever was written when the process ended, old or new content is verified."""
    from staircase_attention import files

    write_json(tmp_path / CHECKSUMS, {})
    write_summed(tmp_path, {"a": b"old", "b": b"old"})
    write_whole = files.write_whole
    for num_writes in range(4):
        left = [num_writes]

        def write(*parts, left=left):
            if not left[0]:
                raise KeyboardInterrupt
            left[0] -= 1
            write_whole(*parts)

        monkeypatch.setattr(files, "write_whole", write)
        with pytest.raises(KeyboardInterrupt):
            write_summed(tmp_path, {"a": b"new", "b": b"new"})
        monkeypatch.undo()
        assert {read_summed(tmp_path, name) for name in "ab"} <= {b"old", b"new"}
    write_summed(tmp_path, {"a": b"new", "b": b"new"})
    (tmp_path / "a").write_bytes(b"old")
    with pytest.raises(ValueError, match=r"a differs from checksums.json, which may be deleted"):
        read_summed(tmp_path, "a")


def test_two_copies_of_a_run_have_one_checksum_and_a_changed_one_has_another(small_run, tmp_path):
    first = load_run(small_run)
    assert first.is_verified
    assert load_run(shutil.copytree(small_run, tmp_path / "copy")).checksums == first.checksums
    train(small_recipe(seed=5), tmp_path / "other")
    assert load_run(tmp_path / "other").checksums != first.checksums
    with pytest.raises(InputError, match="at most 10 bytes"):
        read_file(tmp_path / "other" / "config.json", most=10)
    assert load_run(run_path("pretrained:parity-staircase")).checksums["run"]
