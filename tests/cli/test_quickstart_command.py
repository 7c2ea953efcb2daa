"""`staircase quickstart` prints commands that work as they are typed."""

import shlex
import shutil

from staircase_attention.experiments import page, quickstart


def test_its_commands_do_what_it_did(output_of, tmp_path, monkeypatch):
    for module in (page, quickstart):
        monkeypatch.setattr(module, "SAMPLE_TOKENS", 20)
    monkeypatch.setattr(quickstart, "seconds_per_update", lambda *_: 1.0)
    text = tmp_path / "my text.txt"
    text.write_text("".join(f"Line {n} is about the old house by the sea.\n" for n in range(400)))
    folder = tmp_path / "out"
    out = output_of("quickstart", text, "--output", folder, "--minutes", "0.002", "--quiet")
    assert f"more: staircase sample (or chat, eval, export) {folder / 'run'}" in out
    commands = [shlex.split(line)[2:] for line in out.splitlines() if line.startswith("$ ")]
    assert [command[0] for command in commands] == ["prepare", "train", "sample"]
    for name in ("corpus", "run"):
        shutil.rmtree(folder / name)
    typed = [output_of(*command) for command in commands]
    assert "finished after" in typed[1]
    assert typed[2] in out


def test_a_time_that_is_none_is_refused(refused, tmp_path):
    (tmp_path / "a.txt").write_text("Some text.\n")
    error = refused("quickstart", tmp_path / "a.txt", "--minutes", "0", "--output", tmp_path / "q")
    assert "minutes must be a number of at least 0.001, got 0" in error
