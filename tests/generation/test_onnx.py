"""One decoding step as a graph says what the model says, for every schedule."""

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from building import ALL_SCHEDULES, EXACT, MODERN, VOCAB_SIZE
from staircase_attention import CoreConfig, SequenceModel, TransformerXL, inspect
from staircase_attention.generation.onnx import DecodingStep, export_onnx
from staircase_attention.schedules import make_schedule

LENGTH = 200
BLOCKS = Path(__file__).parents[1] / "examples" / "blocks.py"
EXPORTED = {
    "staircase": {"chunk_size": 2, "num_passes": 2},
    "cached-staircase": {"chunk_size": 2, "num_window_chunks": 3, "num_passes": 1},
    "global-cached-staircase": {"chunk_size": 3, "num_passes": 1},
    "ladder": {"span": 5, "num_passes": 2, "order": "AABB"},
    "transformer-xl": {"span": 6},
    "universal-transformer": {"span": 5, "num_passes": 2},
    "parallel-loop": {"span": 5, "num_passes": 2},
    "feedback-transformer": {"span": 5},
    "memory-network": {"span": 5},
}


def model_of(schedule, num_layers=1, **settings):
    torch.manual_seed(0)
    layers = 1 if schedule.name == "universal-transformer" else num_layers
    core = CoreConfig(width=8, num_layers=layers, num_heads=2, **settings)
    return SequenceModel(vocab_size=VOCAB_SIZE, core=core, schedule=schedule).eval()


@given(schedule=st.one_of(*ALL_SCHEDULES.values()), is_modern=st.booleans())
@torch.no_grad()
def test_a_step_gives_the_logits_of_the_model_after_every_token(schedule, is_modern):
    model = model_of(
        schedule, 2, **({"positions": "rotary"} | MODERN if is_modern else {})
    ).double()
    tokens = torch.randint(VOCAB_SIZE, (2, 24))
    seen = inspect.inspect(model, tokens)
    step = DecodingStep(model, num_tokens=None if schedule.is_state_bounded else 24)
    state, said = step.initial_state(2), []
    shapes = [part.shape for part in state]
    for token in tokens.T:
        logits, passes, *state = step(token, *state)
        said.append(torch.cat([passes, logits[:, None]], dim=1))
    assert [part.shape for part in state] == shapes
    after = torch.stack(said, dim=1)
    torch.testing.assert_close(after[:, :, -1], seen.logits, **EXACT)
    if not is_modern and getattr(schedule, "order", "ABAB") == "ABAB":
        for number in range(after.shape[2] - 1):
            torch.testing.assert_close(after[:, :, number], seen.logits_after(number + 1), **EXACT)


@pytest.mark.parametrize("name", EXPORTED)
@torch.no_grad()
def test_onnx_runtime_agrees_with_the_model(name, tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    model = model_of(make_schedule(name, EXPORTED[name]))
    num_tokens = None if model.schedule.is_state_bounded else LENGTH
    session = runtime.InferenceSession(
        export_onnx(model, tmp_path / "s.onnx", num_tokens=num_tokens)
    )
    tokens = torch.randint(VOCAB_SIZE, (3, LENGTH))
    expected, _ = model(tokens)
    names = [given.name for given in session.get_inputs()]
    state = DecodingStep(model, num_tokens=num_tokens).initial_state(3)
    given = [part.numpy() for part in state]
    for place in range(LENGTH):
        logits, _, *given = session.run(
            None, dict(zip(names, [tokens[:, place].numpy(), *given], strict=True))
        )
        torch.testing.assert_close(torch.from_numpy(logits), expected[:, place], rtol=0, atol=1e-5)


def test_the_command_exports_any_run(tmp_path, staircase):
    pytest.importorskip("onnx")
    run, folder = "pretrained:parity-staircase", tmp_path / "new"
    status, output, _ = staircase("export", run, folder, "--format", "onnx")
    assert (status, output) == (0, f"wrote {folder / 'step.onnx'}\n")
    assert (folder / "step.onnx").stat().st_size > 100_000


@pytest.mark.parametrize("norm", [None, torch.nn.Identity])
def test_a_block_that_the_exporter_cannot_write_is_refused_in_one_line(norm, tmp_path):
    pytest.importorskip("onnx")
    core = CoreConfig(
        reference=f"{BLOCKS}:Modern",
        width=8,
        num_layers=1,
        num_heads=2,
        num_key_value_heads=1,
        feed_forward_width=4,
    )
    model = SequenceModel(vocab_size=VOCAB_SIZE, core=core, schedule=TransformerXL(span=3))
    if norm:  # it comes as far as the heads that share keys
        model.core.layers[0].attention_norm = norm()
    with pytest.raises(ValueError, match=r"that the exporter knows, got .*(rms_norm|gqa).*; write"):
        export_onnx(model.eval(), tmp_path / "step.onnx")


def test_a_state_that_grows_is_exported_for_a_number_of_tokens(tmp_path):
    growing = model_of(make_schedule("global-cached-staircase", {"chunk_size": 2, "num_passes": 1}))
    with pytest.raises(ValueError, match="exported for a number of tokens, got none"):
        export_onnx(growing, tmp_path / "step.onnx")
    bounded = model_of(make_schedule("staircase", {"chunk_size": 2, "num_passes": 1}))
    with pytest.raises(ValueError, match="for a state that grows, got 9; leave it out"):
        export_onnx(bounded, tmp_path / "step.onnx", num_tokens=9)
