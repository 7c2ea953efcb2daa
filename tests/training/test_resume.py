"""Nothing is lost: a run that was killed, stopped or damaged ends as if nothing had happened."""

import errno
import json
import random
import shutil
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from small_runs import (
    Interrupting,
    KilledError,
    final_bytes,
    fork_process,
    lstm_recipe,
    output_of,
    small_recipe,
)

from staircase_attention.files import checksum
from staircase_attention.training import StopRequested, checkpoint, processes, resume, train
from staircase_attention.training.checkpoint import CheckpointFolder, DamagedCheckpointError

RESTARTS = {"training__restart_every": 4}
PARTS = {
    "training__passes": {"kind": "parts", "choices": [1, 3]},
    "training__num_micro_batches": 2,
}
BLOCKS = {
    "model__core__reference": f"{Path(__file__).parents[1]}/examples/blocks.py:Modern",
    "model__core__num_key_value_heads": 1,
    "model__core__feed_forward_width": 10,
    "model__core__dropout": 0.0,
}
GROWTH = RESTARTS | {
    "training__growth__first_tokens": 3,
    "training__growth__double_every": 5,
}


@pytest.mark.parametrize(
    ("make_recipe", "changes"),
    [
        (small_recipe, {}),
        (small_recipe, {"training__restart_every": 5}),
        (small_recipe, GROWTH),
        (small_recipe, {"training__passes__kind": "uniform", "training__passes__most": 3}),
        (small_recipe, PARTS),
        (small_recipe, BLOCKS),
        (lstm_recipe, {}),
    ],
    ids=["staircase", "restarts", "restarts and growth", "passes", "parts", "own blocks", "lstm"],
)
def test_a_run_that_dies_after_every_update_ends_bit_for_bit_the_same(
    tmp_path, make_recipe, changes
):
    recipe = make_recipe(**changes, training__num_updates=9)
    train(recipe, tmp_path / "whole")
    with pytest.raises(KilledError):
        train(recipe, tmp_path / "broken", progress=Interrupting(1))
    for update in range(2, 9):
        with pytest.raises(KilledError):
            resume(tmp_path / "broken", progress=Interrupting(update))
    assert resume(tmp_path / "broken").status == "finished"
    assert final_bytes(tmp_path / "broken") == final_bytes(tmp_path / "whole")


def test_a_run_says_if_its_episodes_never_become_whole(tmp_path):
    growth = {"training__growth__first_tokens": 3, "training__growth__num_doublings": 1}
    for every, is_said in ((12, True), (11, False)):
        display = Interrupting()
        recipe = small_recipe(**growth, training__growth__double_every=every)
        train(recipe, tmp_path / f"every-{every}", progress=display)
        text = "\n".join(display.said)
        assert ("episodes are cut to 3 tokens to the end of training" in text) is is_said
    # An episode of PARITY has 11 tokens.
    for tokens, is_said in ((10, True), (11, False)):
        display = Interrupting(1)
        changes = {"training__growth__first_tokens": tokens}
        with pytest.raises(KilledError):
            train(small_recipe(**changes), tmp_path / f"tokens-{tokens}", progress=display)
        assert any("episodes are cut" in text for text in display.said) is is_said


@pytest.mark.slow
def test_a_run_killed_at_random_moments_ends_bit_for_bit_the_same(tmp_path):
    """SIGKILL, which no program can catch, whatever the run is doing at that moment."""
    recipe = small_recipe(training__num_updates=30, training__checkpoint_every=3)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert ended(fork_process(whole, recipe)) == 0, output_of(whole).read_text()
    moments, kills = random.Random(7), 0
    while kills < 2:
        process = fork_process(killed, recipe)
        while process.is_alive() and "update" not in output_of(killed).read_text():
            time.sleep(0.01)
        time.sleep(moments.uniform(0.0, 0.35))
        process.kill()
        was_running = ended(process) == -signal.SIGKILL
        kills += was_running
        assert was_running or (killed / "result.json").exists(), output_of(killed).read_text()
        if not was_running:
            # Too fast for the next kill: go back to the first checkpoint that is left.
            (killed / "result.json").unlink()
            folder = CheckpointFolder(killed / "checkpoints")
            folder.remove(folder.names()[1:])
    assert ended(fork_process(killed, recipe)) == 0, output_of(killed).read_text()
    assert final_bytes(killed) == final_bytes(whole)


def ended(process):
    process.join()
    return process.exitcode


@pytest.fixture
def nohup(request):
    """Whether SIGHUP is ignored from the start."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN if request.param else signal.SIG_DFL)
    yield request.param
    signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
@pytest.mark.parametrize("nohup", [False], indirect=True)
def test_a_signal_saves_before_it_stops_and_nothing_is_repeated(tmp_path, small_run, number, nohup):
    run = tmp_path / "a run"
    asked = Interrupting(6, lambda: signal.raise_signal(number))
    message = r"update 6, saved; .*: staircase resume '.*a run'$"
    with pytest.raises(StopRequested, match=message) as caught:
        train(small_recipe(), run, progress=asked)
    assert caught.value.exit_status == 128 + number
    assert CheckpointFolder(run / "checkpoints").names()[-1].update == 6
    resume(run)
    assert final_bytes(run) == final_bytes(small_run)


@pytest.mark.parametrize("nohup", [True], indirect=True)
def test_under_nohup_a_run_survives_its_terminal(tmp_path, nohup):
    asked = Interrupting(6, lambda: signal.raise_signal(signal.SIGHUP))
    assert train(small_recipe(), tmp_path / "run", progress=asked).status == "finished"


def test_a_run_may_be_in_a_thread_of_its_own(tmp_path):
    """Only the main thread can receive signals."""
    with ThreadPoolExecutor(1) as thread:
        result = thread.submit(train, small_recipe(), tmp_path / "run").result()
    assert result.status == "finished"


def test_a_second_interrupt_does_not_wait():
    request = processes.StopRequest()
    request.receive(signal.SIGINT, None)
    with pytest.raises(KeyboardInterrupt):
        request.receive(signal.SIGINT, None)


DAMAGES = {
    "cut": lambda content: content[: len(content) // 2],
    "changed": lambda content: content[:-1] + bytes([content[-1] ^ 1]),
    "emptied": lambda content: b"{}",
    "scrambled": lambda content: b"\xff\xfe" + content,
    "gone": None,
}


@pytest.fixture(scope="module")
def killed_run(tmp_path_factory):
    """A run that was killed after its tenth update, to be copied."""
    folder = tmp_path_factory.mktemp("killed") / "run"
    with pytest.raises(KilledError):
        train(small_recipe(), folder, progress=Interrupting(10))
    return folder


@pytest.mark.parametrize(
    ("file", "damage"),
    [
        *(("manifest.json", damage) for damage in DAMAGES),
        *(("trainer.json", damage) for damage in ("emptied", "scrambled", "gone")),
        *(("weights.safetensors", damage) for damage in ("cut", "changed", "gone")),
    ],
)
def test_a_damaged_latest_checkpoint_falls_back_to_the_one_before_and_says_so(
    tmp_path, small_run, killed_run, file, damage
):
    shutil.copytree(killed_run, tmp_path / "run")
    folder = CheckpointFolder(tmp_path / "run" / "checkpoints")
    names = folder.names()
    path = folder.path / str(names[-1]) / file
    content = path.read_bytes()
    path.unlink()
    if DAMAGES[damage] is not None:
        path.write_bytes(DAMAGES[damage](content))
    watching = Interrupting()
    resume(tmp_path / "run", progress=watching)
    assert any("damaged checkpoint" in line and "falling back" in line for line in watching.said)
    assert final_bytes(tmp_path / "run") == final_bytes(small_run)


def test_a_checkpoint_that_claims_endless_processes_is_damaged(killed_run, tmp_path):
    folder = CheckpointFolder(shutil.copytree(killed_run / "checkpoints", tmp_path / "copied"))
    [*_, name] = folder.names()
    path = folder.path / str(name)
    trainer = json.loads((path / "trainer.json").read_text()) | {"num_processes": 10**12}
    (path / "trainer.json").write_text(json.dumps(trainer))
    sums = json.loads((path / "manifest.json").read_text())
    sums["trainer.json"] = checksum((path / "trainer.json").read_bytes())
    (path / "manifest.json").write_text(json.dumps(sums))
    with pytest.raises(DamagedCheckpointError, match=r"process-1.safetensors"):
        folder.read(name)


def test_a_full_disk_ends_the_run_with_one_line_and_the_last_checkpoint_whole(
    tmp_path, small_run, monkeypatch
):
    def full(_path, _content):
        raise OSError(errno.ENOSPC, "No space left on device")

    def fill_the_disk():
        monkeypatch.setattr(checkpoint, "_write", full)

    with pytest.raises(OSError, match="a run needs space on its disk") as caught:
        train(small_recipe(), tmp_path / "run", progress=Interrupting(6, fill_the_disk))
    assert "update 5" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not list((tmp_path / "run" / "checkpoints").glob(".partial-*"))
    monkeypatch.undo()
    resume(tmp_path / "run")
    assert final_bytes(tmp_path / "run") == final_bytes(small_run)


def test_a_finished_run_gives_its_result_at_once(small_run):
    before = (small_run / "metrics.jsonl").stat().st_mtime_ns
    result = resume(small_run, progress=Interrupting(0))
    assert result.num_updates == 12
    assert json.loads((small_run / "result.json").read_text())["status"] == "finished"
    assert (small_run / "metrics.jsonl").stat().st_mtime_ns == before


def test_one_call_starts_resumes_and_finishes_a_run_however_often_it_is_made(tmp_path, small_run):
    run = tmp_path / "run"
    for update in (1, 6, 9):
        with pytest.raises(KilledError):
            train(small_recipe(), run, resume=True, progress=Interrupting(update))
    assert train(small_recipe(), run, resume=True).status == "finished"
    assert final_bytes(run) == final_bytes(small_run)
    train(small_recipe(), run, resume=True, progress=Interrupting(0))


@pytest.mark.parametrize(
    ("changes", "init", "expected"),
    [
        ({"seed": 1}, None, "got seed = 1 in place of 0; name another"),
        ({"model__core__width": 4, "seed": 2, "name": "x"}, None, r"got name = x in .*, \.\.\.;"),
        ({}, "pretrained:parity-staircase", "got init = pretrained:.* in place of None; name"),
    ],
)
def test_a_run_of_another_recipe_is_not_resumed(small_run, changes, init, expected):
    with pytest.raises(ValueError, match=f"a run is resumed with its own recipe.*{expected}"):
        train(small_recipe(**changes), small_run, init=init, resume=True)


def test_the_latest_two_the_best_and_every_kth_checkpoint_are_kept(tmp_path):
    recipe = small_recipe(
        training__num_updates=24, training__checkpoint_every=2, training__keep_every=6
    )
    result = train(recipe, tmp_path / "run")
    updates = {name.update for name in CheckpointFolder(tmp_path / "run" / "checkpoints").names()}
    assert {6, 12, 18, 22, 24, result.best_update} <= updates
    # Of the others only such as a kept one calls its best.
    assert len(updates - {0, 6, 12, 18, 22, 24}) <= 2


def test_nothing_in_a_run_folder_is_pickled(small_run):
    endings = {path.suffix for path in small_run.rglob("*") if path.is_file()}
    endings -= {path.suffix for path in (small_run / "tensorboard").rglob("*")}
    assert endings == {".json", ".jsonl", ".safetensors"}
