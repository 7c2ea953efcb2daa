"""Streams on a GPU: the tokens of the CPU, and streams that move from one to the other."""

import pytest
import torch
from small_streams import GREEDY, SAMPLED, all_models, made, name

from staircase_attention.generation import load_stream, save_stream, stream

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
