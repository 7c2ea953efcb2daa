"""A saved stream continues elsewhere, token for token the same."""

import json
import re
from itertools import islice

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import save_file
from small_streams import (
    FUNCTIONS,
    SAMPLED,
    WILD,
    decode,
    lstm,
    name,
    prompts,
    some_models,
)

from building import SCHEDULES, build, models, small
from staircase_attention import CoreConfig, Ladder, Staircase
from staircase_attention.files import NO_SUM, SEAL, sealed
from staircase_attention.generation import (
    load_stream,
    save_stream,
    stream,
    stream_text,
)
from staircase_attention.generation.saved_stream import HEADER
from staircase_attention.models import with_exits

each_model = pytest.mark.parametrize("model", some_models(), ids=name)


@pytest.mark.parametrize("kind", SCHEDULES)
@settings(max_examples=4, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_saved_stream_continues_token_for_token_the_same(kind, data, tmp_path):
    """Saved at any moment, also within a round and after some rows have ended."""
    model = data.draw(models(kind))
    batch = data.draw(st.lists(prompts, min_size=1, max_size=3))
    options = {"max_tokens": 9, "sampling": SAMPLED, "stop_tokens": [0]}
    tokens = stream(model, batch, **options)
    before = list(islice(tokens, data.draw(small(0, 12))))
    save_stream(tokens, tmp_path / "stream.safetensors")
    expected = list(tokens)
    # Saving leaves the stream itself as it was.
    assert before + expected == list(stream(model, batch, **options))
    loaded = load_stream(tmp_path / "stream.safetensors", model)
    assert list(loaded) == expected
    assert loaded.finished == tokens.finished
    assert [entry.name for entry in tmp_path.iterdir()] == ["stream.safetensors"]


@each_model
def test_a_saved_text_continues_letter_for_letter_the_same(model, tmp_path):
    """Saved also inside a character, and inside what may become a stop string."""
    options = {"max_tokens": 14, "sampling": WILD, "stop_strings": ["bé", "aa"], **FUNCTIONS}
    expected = list(stream_text(model, ["a", "ba"], **options))
    text, found = stream_text(model, ["a", "ba"], **options), []
    path = tmp_path / "text.safetensors"
    for _ in expected:
        save_stream(text, path)
        text = load_stream(path, model, decode=decode)
        found.append(next(text))
    assert found == expected


def as_version_1(path, tails):
    """Write a saved stream again as version 0.1 did, which decoded tokens when asked for them."""
    with safe_open(path, framework="pt") as file:
        header = json.loads(file.metadata()[HEADER])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    recent = header.pop("recent")
    longest = max(map(len, recent))
    tensors["recent"] = torch.tensor([[-1] * (longest - len(row)) + row for row in recent])
    names = ("row", "token", "logprob", "finish")
    header["waiting"] = [[one[name] for name in names] for one in header["waiting"]]
    header["text"] = {"stop_strings": header["text"]["stop_strings"], "tails": tails}
    save_file(tensors, path, metadata={HEADER: json.dumps(header | {"version": 1})})


def test_tokens_that_waited_in_a_stream_of_version_1_get_their_text(tmp_path):
    prompts, path = ["a", "ba", "b"], tmp_path / "stream"
    options = {"max_tokens": 20, "sampling": WILD, "stop_strings": ["bb", "éa"], **FUNCTIONS}
    expected = list(stream_text(lstm(), prompts, **options))
    text = stream_text(lstm(), prompts, **options)
    assert next(text) == expected[0]
    save_stream(text, path)
    # Nothing was held back of the rows whose first token waits.
    as_version_1(path, [[0, text.held.get(0, b"").hex(), ""], [1, "", ""], [2, "", ""]])
    assert list(load_stream(path, lstm(), decode=decode)) == expected[1:]


def test_a_stream_of_another_model_is_refused_in_one_line(tmp_path):
    path = tmp_path / "stream.safetensors"
    model = build(Staircase(chunk_size=3, num_passes=2))
    save_stream(stream(model, [1], max_tokens=3), path)
    core = CoreConfig(width=4, num_layers=2, num_heads=2)
    for other, message in (
        (build(Staircase(chunk_size=4, num_passes=2)), "got .* of staircase \\(chunk_size=3.*for"),
        (build(Staircase(chunk_size=3, num_passes=2), core), "width=8.*width=4"),
        (build(Ladder(num_passes=2, span=3)), "for ladder"),
        (lstm(), "for lstm \\(width=6, num_layers=2, vocab_size=7, output_size=5\\)"),
        (build(Staircase(chunk_size=3, num_passes=2), seed=1), "other weights"),
        (build(Staircase(chunk_size=3, num_passes=2)).float(), "or another dtype"),
    ):
        with pytest.raises(ValueError, match=f"^.*{message}.*$"):
            load_stream(path, other)
    assert load_stream(path, model)
    with torch.no_grad():
        model.output.bias[-1] += 1e-9
    with pytest.raises(ValueError, match="other weights"):
        load_stream(path, model)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("weights", "a stream of version 1 to 3, got .* with version unknown"),
        ("cut", "must be as it was written, got .*checksum differs"),
        ("newer", "with version 9"),
        ("text", "a stream of text continues with its decode, got none; pass decode"),
        ("absent", "absent, which is no file; check"),
        (".", "which is no file; check"),
    ],
)
def test_a_file_that_is_no_token_stream_is_refused(name, message, tmp_path):
    model = lstm()
    save_file({"weight": torch.zeros(1)}, tmp_path / "weights")
    save_stream(stream_text(model, "a", max_tokens=3, **FUNCTIONS), tmp_path / "text")
    save_stream(stream(model, [1], max_tokens=3), tmp_path / "tokens")
    content = (tmp_path / "tokens").read_bytes()
    (tmp_path / "cut").write_bytes(content[:-1])
    newer = re.sub(rb'"sha256":"\w+', SEAL + NO_SUM, content).replace(b'": 3', b'": 9', 1)
    (tmp_path / "newer").write_bytes(sealed(newer))
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        load_stream(tmp_path / name, model)


def test_a_stream_is_saved_only_where_a_folder_is(tmp_path):
    tokens = stream(lstm(), [1, 2], max_tokens=3)
    with pytest.raises(ValueError, match="a stream must be a file in a folder that can be writ"):
        save_stream(tokens, tmp_path / "absent" / "stream.safetensors")


def test_a_stream_with_exits_continues_with_the_same_exits_only(tmp_path):
    model = build(Ladder(num_passes=3, span=4)).eval()
    quick, path = with_exits(model, "change", 0.9), tmp_path / "stream.safetensors"
    tokens = stream(quick, [1, 2, 3], max_tokens=None)
    tokens.take(5)
    save_stream(tokens, path)
    expected = list(islice(tokens, 8))
    assert list(islice(load_stream(path, with_exits(model, "change", 0.9)), 8)) == expected
    message = r"change=0\.9\) for .* the same passes and exits"
    for other in (model, with_exits(model, "change", 0.5)):
        with pytest.raises(ValueError, match=message):
            load_stream(path, other)
