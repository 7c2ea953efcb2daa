"""Every model runs, streams and is exact where there is no engine, no Triton and no compiler."""

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "triton" or name.startswith("staircase_attention.engine"):
            raise ImportError(f"{name} is hidden")

sys.meta_path.insert(0, Blocker())

import torch
from staircase_attention import CoreConfig, SequenceModel, Staircase
from staircase_attention.models import LSTMSequenceModel
from staircase_attention.models.sequence_model import without_weights

core = CoreConfig(width=8, num_layers=1, num_heads=2)
with without_weights():
    made = SequenceModel(vocab_size=3, core=core, schedule=Staircase(chunk_size=2, num_passes=2))
    lstm = LSTMSequenceModel(vocab_size=3, output_size=3, width=4, num_layers=1)
    # As a user's block may do.
    lstm.own = torch.nn.Parameter(torch.nn.init.normal_(torch.empty(2)))
assert {one.device.type for one in [*made.parameters(), *lstm.parameters()]} == {"meta"}
assert "torch._dynamo" not in sys.modules, "it takes seconds to import"

from building import EXACT, example_models, feed, random_tokens
from oracle import oracle_logits
from staircase_attention.models import PlainBackend

for model in example_models():
    batch = random_tokens(2, 11)
    expected = oracle_logits(
        dict(model.named_parameters()), model.config, model.schedule, batch
    )
    assert isinstance(model.backend, PlainBackend)
    for pieces in ([batch], batch.split([4, 1, 6], dim=1)):
        torch.testing.assert_close(feed(model, list(pieces))[0], expected, **EXACT)
    print(model.schedule.name)

assert not [name for name in sys.modules if "staircase_attention.engine" in name]
del sys.meta_path[0]
from staircase_attention import engine
assert engine.accelerate and engine.Decoder and "triton" not in sys.modules
"""


def test_every_model_is_exact_without_the_engine_which_is_imported_without_triton():
    tests = Path(__file__).parents[1]
    paths = os.pathsep.join([str(tests), *sys.path])
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert len(result.stdout.split()) == 11
