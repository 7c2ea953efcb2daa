"""`benchmarks/million_steps.py` counts what reading token by token counts, however it is cut."""

import importlib.util
from pathlib import Path

import numpy as np
import torch

from staircase_attention.training import load_run

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "million_steps.py"
LENGTH, STREAMS = 100, 3


def test_segments_count_what_single_tokens_and_composed_permutations_count():
    spec = importlib.util.spec_from_file_location("million_steps", SCRIPT)
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    # A model that is often wrong after a few elements.
    loaded = load_run("pretrained:parity-transformer-xl")
    task, model = loaded.data.task, loaded.model.eval()
    options = {"length": LENGTH, "precision": torch.float32, "device": torch.device("cpu")}
    counts = []
    for segment in (7, 32, 128):
        words = script.Words(task, streams=STREAMS, seed=5)
        *_, last = script.score(model, words, segment=segment, **options)
        counts.append(last)
    images = [[int(digit) - 1 for digit in symbol] for symbol in task.output_symbols]
    drawn = [np.random.default_rng((5, stream)) for stream in range(STREAMS)]
    products, wrong = [[0, 1]] * STREAMS, np.zeros((STREAMS, LENGTH + 1), dtype=bool)
    with torch.no_grad():
        _, state = model(torch.zeros(STREAMS, 1, dtype=torch.int64))
        for element in range(1, LENGTH + 1):
            new = [int(one.integers(2)) for one in drawn]
            products = [
                [images[one][point] for point in product]
                for product, one in zip(products, new, strict=True)
            ]
            logits, state = model(torch.tensor(new)[:, None] + 1, state)
            answers = [images[one] for one in logits[:, -1].argmax(-1).tolist()]
            wrong[:, element] = [mine != true for mine, true in zip(answers, products, strict=True)]
    assert wrong.any(1).all()
    for found in counts:
        assert found["num_elements"] == LENGTH
        assert found["first_error"] == wrong.argmax(1).tolist()
        assert found["errors_by_stream"] == wrong.sum(1).tolist()
        for bound, part in found["wrong_from_element"].items():
            here = wrong[:, bound : 2 * bound]
            assert part == {"wrong": here.sum(), "answers": here.size}
