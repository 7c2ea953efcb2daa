"""A saved stream continues elsewhere, token for token the same."""

import subprocess
import sys
from itertools import islice
from pathlib import Path

import numpy
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from small_streams import (
    FUNCTIONS,
    SAMPLED,
    WILD,
    all_models,
    decode,
    lstm,
    name,
    prompts,
    some_models,
)

from building import SCHEDULES, build, models, small
from staircase_attention import CoreConfig, Ladder, Staircase
from staircase_attention.generation import (
    load_stream,
    load_text_stream,
    save_stream,
    stream,
    stream_text,
)

each_model = pytest.mark.parametrize("model", some_models(), ids=name)
TESTS = Path(__file__).parents[1]


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
    for _ in range(40):
        save_stream(text, path)
        text = load_text_stream(path, model, decode=decode)
        # One token at a time, as most tokens that are held back show no text.
        token = next(text.tokens, None)
        if token is None:
            break
        new = text._add(token)
        found += [new] if new.text or new.finish else []
    assert found == expected


@pytest.mark.parametrize("kind", [numpy.int64, numpy.int16, numpy.uint8, numpy.uint64])
def test_numbers_of_numpy_are_saved_as_pythons(kind, tmp_path):
    files = [tmp_path / "plain", tmp_path / "numpy"]
    for path, number in zip(files, (int, kind), strict=True):
        tokens = stream(
            lstm(),
            [[number(1), number(2)], [3, number(4)]],
            max_tokens=number(9),
            sampling=SAMPLED,
            stop_tokens=[number(0)] if number is int else numpy.array([0], dtype=kind),
            start_token=number(6),
            row_numbers=[number(5), number(3)],
        )
        next(tokens)
        tokens.finish(number(3), "stop_string")
        save_stream(tokens, path)
    assert files[0].read_bytes() == files[1].read_bytes()


ELSEWHERE = """
import sys
sys.path[:0] = sys.argv[1:3]
from small_streams import all_models
from staircase_attention.generation import load_stream
for number, model in enumerate(all_models()):
    made = load_stream(f"{sys.argv[3]}/{number}", model)
    print([(new.row, new.token, new.logprob) for new in made])
"""


def test_a_saved_stream_continues_in_another_process(tmp_path):
    expected = []
    for number, model in enumerate(all_models()):
        tokens = stream(model, [[1, 2, 3, 4, 5], [6]], max_tokens=8, sampling=SAMPLED)
        for _ in range(7):
            next(tokens)
        save_stream(tokens, tmp_path / str(number))
        expected.append(str([(new.row, new.token, new.logprob) for new in tokens]))
    found = subprocess.run(
        [sys.executable, "-c", ELSEWHERE, TESTS, TESTS / "generation", tmp_path],
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.splitlines() == expected


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
        ("weights", "with no stream in it"),
        ("cut", "not a whole safetensors file"),
        ("newer", "with version 9"),
        ("text", "use load_text_stream"),
        ("absent", "absent, which does not exist; check"),
        (".", "which is not a file; check"),
    ],
)
def test_a_file_that_is_no_token_stream_is_refused(name, message, tmp_path):
    model = lstm()
    save_file({"weight": torch.zeros(1)}, tmp_path / "weights")
    save_stream(stream_text(model, "a", max_tokens=3, **FUNCTIONS), tmp_path / "text")
    save_stream(stream(model, [1], max_tokens=3), tmp_path / "tokens")
    content = (tmp_path / "tokens").read_bytes()
    (tmp_path / "cut").write_bytes(content[:-1])
    (tmp_path / "newer").write_bytes(content.replace(b'version\\": 1', b'version\\": 9'))
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        load_stream(tmp_path / name, model)
    with pytest.raises(ValueError, match="use load_stream"):
        load_text_stream(tmp_path / "tokens", model, decode=decode)


def test_a_stream_is_saved_only_where_a_folder_is(tmp_path):
    tokens = stream(all_models()[0], [1, 2], max_tokens=3)
    with pytest.raises(ValueError, match="a stream must be a file in a folder that can be writ"):
        save_stream(tokens, tmp_path / "absent" / "stream.safetensors")
