"""A packed run is small and whole, and gives the model back; so do those that are shipped."""

import json
import shutil
from hashlib import sha256

import pytest
import torch
from small_runs import small_recipe

from staircase_attention.tasks import RandomWalk, split
from staircase_attention.training import (
    load_language_model,
    load_run,
    pack,
    pretrained_names,
    resume,
    run_path,
    train,
)
from staircase_attention.training.run_folder import RunFolder


@pytest.mark.parametrize("numbers", ["bfloat16", "float32"])
def test_a_packed_run_gives_the_model_back(small_run, tmp_path, numbers):
    before, after = (
        load_run(small_run),
        load_run(pack(small_run, tmp_path / "packed", numbers=numbers)),
    )
    assert after.update == before.update
    assert after.recipe == before.recipe
    expected = before.model.state_dict()
    for name, tensor in after.model.state_dict().items():
        rounded = expected[name].to(getattr(torch, numbers)).to(tensor.dtype)
        assert torch.equal(tensor, rounded)
    kept = {path.name for path in (tmp_path / "packed").iterdir()}
    assert kept == {
        "checksums.json", "config.json", "environment.json", "packing.json", "result.json",
        "weights.safetensors",
    }  # fmt: skip
    assert (tmp_path / "packed" / "result.json").read_bytes() == (
        small_run / "result.json"
    ).read_bytes()


def test_a_packed_run_can_be_packed_again_and_does_not_go_on(small_run, tmp_path):
    pack(small_run, tmp_path / "one")
    again = pack(tmp_path / "one", tmp_path / "two")
    assert (again / "weights.safetensors").read_bytes() == (
        tmp_path / "one" / "weights.safetensors"
    ).read_bytes()
    assert resume(again).status == "finished"
    (again / "result.json").unlink()
    with pytest.raises(ValueError, match=r"is resumed from its checkpoints, got .*which is packed"):
        resume(again)
    with pytest.raises(ValueError, match="needs a folder that is new or empty"):
        train(small_recipe(), again)


def test_a_result_stays_with_the_weights_it_is_of(small_run, tmp_path):
    best = load_run(small_run).update
    other = next(
        name.update for name in RunFolder(small_run).checkpoints.names() if name.update != best
    )
    packed = pack(small_run, tmp_path / "other", checkpoint=str(other))
    assert load_run(packed).update == other
    assert not (packed / "result.json").exists()


def test_weights_of_several_runs_are_averaged_and_have_no_result(small_run, tmp_path):
    names = RunFolder(small_run).checkpoints.names()
    paths = [
        pack(small_run, tmp_path / str(name), checkpoint=name.update, numbers="float32")
        for name in names
    ]
    assert len(paths) > 1
    mean = pack(paths[0], tmp_path / "mean", numbers="float32", average=paths[1:])
    weights = [load_run(path).model.state_dict() for path in paths]
    for name, tensor in load_run(mean).model.state_dict().items():
        parts = [one[name].double() for one in weights]
        torch.testing.assert_close(tensor.double(), sum(parts) / len(parts), rtol=1e-6, atol=1e-8)
    assert not (mean / "result.json").exists()
    packing = [json.loads((path / "packing.json").read_text()) for path in (*paths, mean)]
    assert packing[-1]["average_of"] == [one["checksum"] for one in packing[:-1]]
    again = pack(mean, tmp_path / "again", numbers="float32")
    assert json.loads((again / "packing.json").read_text()) == packing[-1]
    with pytest.raises(
        ValueError, match="again, a packed run, has a mean of weights only, got 'la"
    ):
        load_run(again, checkpoint="latest")
    # Of the same shapes.
    (paths[1] / "checksums.json").unlink()
    config = (paths[1] / "config.json").read_text()
    (paths[1] / "config.json").write_text(config.replace('"relu"', '"gelu"'))
    for other in ("pretrained:parity-transformer-xl", paths[1]):
        with pytest.raises(
            ValueError, match=r"average must be of the model and symbols of .*, got"
        ):
            pack(small_run, tmp_path / "new", average=[other])
    assert not (tmp_path / "new").exists()


def test_weights_of_another_model_are_refused_in_one_line(small_run, tmp_path):
    folder = pack(small_run, tmp_path / "packed")
    config = json.loads((folder / "config.json").read_text())
    config["recipe"]["model"]["core"]["width"] = 16
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=r"config.json differs from checksums.json, which may"):
        load_run(folder)
    (folder / "checksums.json").unlink()
    with pytest.raises(ValueError, match=r"must fit the model, whose .* is \[.*\], got \["):
        load_run(folder)


def test_damage_and_wrong_wishes_are_refused_in_one_line(small_run, tmp_path):
    folder = pack(small_run, tmp_path / "packed")
    with pytest.raises(ValueError, match=r"needs a new folder, got .*packed, which exists"):
        pack(small_run, folder)
    with pytest.raises(ValueError, match=r"has the weights of update .* only, got 'latest'"):
        load_run(folder, checkpoint="latest")
    with pytest.raises(ValueError, match=rf"a checkpoint of {small_run} must be .*, got '7'; "):
        pack(small_run, tmp_path / "new", average=[folder], checkpoint=7)
    with pytest.raises(ValueError, match=rf"{folder}, a packed run, has .* only, got 'latest'; "):
        pack(small_run, tmp_path / "new", average=[folder], checkpoint="latest")
    with pytest.raises(
        ValueError, match=r"numbers must be one of bfloat16, float32, got 'float16'"
    ):
        pack(small_run, tmp_path / "new", numbers="float16")
    with pytest.raises(ValueError, match=r"average must be a list of runs, got '.*run'; use \['"):
        pack(small_run, tmp_path / "new", average=str(small_run))
    weights = folder / "weights.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(bytes(content))
    with pytest.raises(ValueError, match=r"must be as it was written, got .*checksum differs"):
        load_run(folder)
    with pytest.raises(ValueError, match=r"a pretrained run must be one of pretrained:.*, got"):
        run_path("pretrained:perpetual-motion")
    blocked = tmp_path / "file"
    blocked.touch()
    with pytest.raises(ValueError, match=r"can be written, got .*; name another"):
        pack(small_run, blocked / "inside")
    assert not list(tmp_path.glob(".*partial"))


def test_the_shipped_staircase_follows_walks():
    model = load_run("pretrained:random-walk-staircase").model
    walks = split(RandomWalk(length=80, num_valid=1, num_test=6), "test", 0)
    inputs, targets = (
        torch.from_numpy(part.reshape(6, 81)) for part in (walks.inputs, walks.targets)
    )
    with torch.no_grad():
        logits, _ = model(inputs.long())
    assert (logits.argmax(-1) == targets)[:, 1:].float().mean() > 0.99


@pytest.mark.parametrize("name", pretrained_names())
def test_shipped_runs_are_whole_small_and_name_no_place(name):
    folder = run_path(f"pretrained:{name}")
    result = json.loads((folder / "result.json").read_text())
    is_text = (folder / "tokeniser").exists()
    loaded = (load_language_model if is_text else load_run)(f"pretrained:{name}")
    assert loaded.update == result["best_update"]
    assert loaded.model.num_parameters == result["num_parameters"]
    num_bytes = sum(path.stat().st_size for path in folder.rglob("*"))
    assert num_bytes < (4e6 if is_text else 16e6)
    command = json.loads((folder / "environment.json").read_text())["command"]
    assert not any(word.startswith("/") for word in " ".join(command).replace("=", " ").split())


def test_a_checkpoint_may_be_named_by_its_number(small_run, tmp_path):
    best = load_run(small_run).update
    assert load_run(small_run, checkpoint=best).update == best
    assert load_run(pack(small_run, tmp_path / "packed"), checkpoint=best).update == best


def test_a_run_is_packed_into_its_own_folder_only(small_run, tmp_path):
    run = shutil.copytree(small_run, tmp_path / "downloaded" / "run")
    for folder, content in ((tmp_path / "downloaded", "theirs"), (tmp_path / "own", "mine")):
        folder.mkdir(exist_ok=True)
        (folder / "notes.txt").write_text(content)
    (run / "tokeniser").mkdir()
    sums = json.loads((run / "checksums.json").read_text())
    sums["tokeniser/../../notes.txt"] = [sha256(b"theirs").hexdigest()]
    (run / "checksums.json").write_text(json.dumps(sums))
    with pytest.raises(ValueError, match="name must stay inside its folder") as caught:
        pack(run, tmp_path / "own" / "packed")
    assert "\n" not in str(caught.value)
    assert (tmp_path / "own" / "notes.txt").read_text() == "mine"
