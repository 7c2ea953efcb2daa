"""Models go to disk and come back the same; Transformers builds and changes them as its own."""

import importlib
import sys

import pytest
import torch
from accelerate import init_empty_weights
from language_models import SCHEDULES, SMALL, build, prompt, small_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from staircase_attention import SequenceModel
from staircase_attention.huggingface import StaircaseConfig, StaircaseForCausalLM, wrap
from staircase_attention.models import LSTMSequenceModel


@pytest.mark.parametrize("positions", ["relative", "rotary"])
@pytest.mark.parametrize("name", SCHEDULES)
def test_a_model_comes_back_bit_for_bit(name, positions, tmp_path):
    model = build(name, positions=positions)
    wrap(model).save_pretrained(tmp_path)
    written = load_file(tmp_path / "model.safetensors")
    assert set(written) == {f"sequence_model.{name}" for name in model.state_dict()}
    read = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert isinstance(read, StaircaseForCausalLM)
    assert not read.training
    tokens = prompt(13, rows=2)
    with torch.no_grad():
        assert read(tokens).logits.equal(model(tokens)[0])


@pytest.mark.filterwarnings("ignore:mkldnn_matmul")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_model_can_be_read_in_another_dtype(dtype, tmp_path):
    wrap(build()).save_pretrained(tmp_path)
    read = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=dtype)
    assert {parameter.dtype for parameter in read.parameters()} == {dtype}
    made = read.generate(prompt(5, rows=2), max_new_tokens=4, do_sample=False)
    assert made.shape == (2, 9)


def test_a_model_finds_its_own_place(tmp_path):
    wrap(build()).save_pretrained(tmp_path)
    placed, plain = (
        AutoModelForCausalLM.from_pretrained(tmp_path, device_map=where) for where in ("auto", None)
    )
    tokens = prompt(5)
    with torch.no_grad():
        torch.testing.assert_close(
            placed(tokens.to(placed.device)).logits.cpu(), plain(tokens).logits
        )


def test_a_new_model_has_our_own_initial_weights():
    config = StaircaseConfig(**SMALL)
    torch.manual_seed(3)
    ours = SequenceModel(
        vocab_size=config.vocab_size, core=config.core, schedule=config.make_schedule()
    )
    theirs = small_model(seed=3)
    torch.manual_seed(3)
    automatic = AutoModelForCausalLM.from_config(config)
    for name, parameter in ours.named_parameters():
        assert parameter.equal(theirs.sequence_model.get_parameter(name))
        assert parameter.equal(automatic.sequence_model.get_parameter(name))


def test_a_model_without_memory_can_be_planned():
    with init_empty_weights():
        model = AutoModelForCausalLM.from_config(StaircaseConfig(**SMALL))
    assert all(parameter.is_meta for parameter in model.parameters())


def test_only_what_a_checkpoint_lacks_is_initialised(tmp_path):
    model = small_model()
    model.save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    lost = "sequence_model.core.layers.1.attention.output.weight"
    del tensors[lost]
    save_file(tensors, path, metadata={"format": "pt"})
    torch.manual_seed(5)
    read = AutoModelForCausalLM.from_pretrained(tmp_path)
    fresh = small_model(seed=5)
    for name, parameter in read.named_parameters():
        source = fresh if name == lost else model
        assert parameter.equal(source.get_parameter(name)), name


def test_a_wrapped_model_is_the_same_model():
    model = build().train()
    wrapped = wrap(model)
    assert wrapped.sequence_model is model
    assert wrapped.training
    # Whatever initialises weights again must leave those of a trained model alone.
    before = model.output.weight.clone()
    wrapped.init_weights()
    assert model.output.weight.equal(before)


def test_what_is_no_causal_language_model_is_refused():
    lstm = LSTMSequenceModel(vocab_size=4, output_size=4, width=4, num_layers=1)
    with pytest.raises(ValueError, match=r"must be a SequenceModel, got LSTMSequenceModel; "):
        wrap(lstm)
    model = build()
    other = SequenceModel(vocab_size=29, output_size=3, core=model.config, schedule=model.schedule)
    with pytest.raises(ValueError, match=r"output_size = vocab_size, got 3 and 29; "):
        wrap(other)


def test_gradient_checkpointing_is_our_recomputation():
    model = small_model()
    tokens = prompt(9, rows=2)
    gradients = []
    for switch in (model.gradient_checkpointing_disable, model.gradient_checkpointing_enable):
        switch()
        assert model.is_gradient_checkpointing == model.sequence_model.recompute
        model.zero_grad()
        model.train()(tokens, labels=tokens).loss.backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    assert model.sequence_model.recompute
    torch.testing.assert_close(*gradients)


def test_tokens_can_be_added():
    model = small_model().eval()
    tokens = prompt(6)
    with torch.no_grad():
        before = model(tokens).logits
        model.resize_token_embeddings(31, mean_resizing=False)
        assert model.config.vocab_size == 31
        model.tie_weights()
        # Inputs and outputs stay apart.
        assert model.get_input_embeddings().weight is not model.get_output_embeddings().weight
        after = model(torch.cat([tokens, torch.tensor([[30]])], dim=1)).logits
    assert after.shape == (1, 7, 31)
    torch.testing.assert_close(after[:, :6, :29], before)


@pytest.fixture
def anew(monkeypatch):
    """Import the package as if for the first time."""
    package = "staircase_attention.huggingface"
    for name in [name for name in sys.modules if name.startswith(package)]:
        monkeypatch.delitem(sys.modules, name)
    return lambda: importlib.import_module(package)


def test_the_import_says_what_to_install(monkeypatch, anew):
    monkeypatch.setattr("transformers.__version__", "4.57.1")
    with pytest.raises(ImportError, match=r"needs Transformers 5, got 4\.57\.1; install it"):
        anew()
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ImportError, match=r"got none; install it: pip install 'staircase-"):
        anew()
