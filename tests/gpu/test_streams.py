"""Streams on a GPU: the tokens of the CPU, and streams that move from one to the other."""

from asyncio import Queue
from dataclasses import replace

import pytest
import torch
from small_streams import GREEDY, SAMPLED, all_models, made, name

from staircase_attention.generation import load_stream, save_stream, stream
from staircase_attention.generation.stepper import Stepper

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]
each_model = pytest.mark.parametrize("model", all_models(), ids=name)
BATCH = [[1, 2, 3, 4, 5, 6, 0, 1], [6], [2, 3, 4]]


@each_model
@pytest.mark.parametrize("sampling", [SAMPLED, GREEDY], ids=["sampled", "greedy"])
def test_a_gpu_makes_the_tokens_of_the_cpu(model, sampling):
    options = {"max_tokens": 20, "sampling": sampling, "stop_tokens": [0]}
    expected = made(stream(model.cpu(), BATCH, **options))
    assert made(stream(model.cuda(), BATCH, **options)) == expected


@each_model
@pytest.mark.parametrize(("here", "there"), [("cuda", "cpu"), ("cpu", "cuda")])
def test_a_stream_moves_between_devices(model, here, there, tmp_path):
    tokens = stream(model.to(here), BATCH, max_tokens=20, sampling=SAMPLED)
    for _ in range(22):
        next(tokens)
    save_stream(tokens, tmp_path / "stream.safetensors")
    expected = [(new.row, new.token) for new in tokens]
    loaded = load_stream(tmp_path / "stream.safetensors", model.to(there))
    assert [(new.row, new.token) for new in loaded] == expected


@each_model
def test_rows_of_a_server_get_the_tokens_of_the_cpu(model):
    """Though steps are launched early, and taken back where a stop string ends a row."""
    pytest.importorskip("starlette")
    from staircase_attention.serve.batching import Answer, Batch

    def tokens_of(row):
        tokens = stream(
            model, [BATCH[row]], max_tokens=12 + row, sampling=SAMPLED, row_numbers=[row]
        )
        tokens.decode, tokens.stop_strings = decode, ("44",)
        return tokens

    def decode(tokens):
        return bytes(48 + token for token in tokens)

    model.cpu()
    expected = ["".join(new.text for new in tokens_of(row)) for row in range(3)]
    batch, texts = Batch(model.cuda(), decode), ["", "", ""]
    for row in range(3):
        tokens = tokens_of(row)
        tokens.stepper = Stepper(model, model.initial_state(1))
        batch.reading.append(
            Answer(
                index=row,
                tokens=tokens,
                unread=[*BATCH[row]],
                wants_state=True,
                news=Queue(),
                sampling=replace(SAMPLED, seed=0),
            )
        )

    def send(news):
        for answer, new in news.items():
            texts[answer.index] += "".join(text for text, _ in new)

    batch.work(send)
    assert texts == expected
