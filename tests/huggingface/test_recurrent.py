"""An existing model of Transformers, some of whose layers recur."""

import copy

import peft
import pytest
import torch
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    Olmo2Config,
    OlmoConfig,
    Qwen2Config,
    Qwen3Config,
    Trainer,
    TrainingArguments,
)

from staircase_attention import (
    CachedStaircase,
    FeedbackTransformer,
    GlobalCachedStaircase,
    Ladder,
    MemoryNetwork,
    Staircase,
    TransformerXL,
)
from staircase_attention.generation.onnx import DecodingStep, export_onnx
from staircase_attention.huggingface import StateCache, recurrent

VOCAB_SIZE = 50
TOKENS = {"vocab_size": VOCAB_SIZE, "bos_token_id": None, "eos_token_id": None, "pad_token_id": 0}
SHAPE = TOKENS | {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}
CONFIGS = {
    "llama": LlamaConfig(**SHAPE),
    "llama-scaled": LlamaConfig(
        **SHAPE, rope_parameters={"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0}
    ),
    "qwen2": Qwen2Config(**SHAPE, tie_word_embeddings=True),
    "qwen3": Qwen3Config(**SHAPE, head_dim=16),
    "olmo": OlmoConfig(**SHAPE),
    "olmo2": Olmo2Config(**SHAPE),
    "gpt2": GPT2Config(**TOKENS, n_embd=32, n_layer=4, n_head=4, n_positions=64),
}
SCHEDULES = [
    Staircase(chunk_size=4, num_passes=3),
    CachedStaircase(chunk_size=3, num_window_chunks=4, num_passes=2),
    GlobalCachedStaircase(chunk_size=4, num_passes=2),
    Ladder(num_passes=2, span=7),
    TransformerXL(span=9),
    FeedbackTransformer(span=6, share_keys_values=False, memory="top", attend_self=True),
]


def original(name="llama", *, attention="sdpa", seed=0):
    torch.manual_seed(seed)
    config = copy.deepcopy(CONFIGS[name])
    return AutoModelForCausalLM.from_config(config, attn_implementation=attention).eval()


def opened(name, schedule, **options):
    """A model whose gates let everything through in part."""
    model = recurrent(original(name, **options), layers=(1, 3), schedule=schedule)
    with torch.no_grad():
        model.sequence_model.core.gates.uniform_(0.2, 0.8)
    return model


def random_tokens(rows, length, seed=0):
    return torch.randint(
        1, VOCAB_SIZE, (rows, length), generator=torch.Generator().manual_seed(seed)
    )


def by_name(schedule):
    return type(schedule).__name__


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("name", CONFIGS)
@torch.no_grad()
def test_one_pass_over_one_window_equals_the_original_bit_for_bit(name, attention):
    model, tokens = original(name, attention=attention), random_tokens(2, 27)
    for schedule in (Staircase(chunk_size=32, num_passes=1), Ladder(num_passes=1, span=40)):
        ours = recurrent(model, layers=(1, 3), schedule=schedule)
        assert torch.equal(ours(tokens).logits, model(tokens).logits)


@pytest.mark.parametrize("name", CONFIGS)
@torch.no_grad()
def test_a_model_in_half_precision_stays_near_the_original(name):
    model, tokens = original(name).bfloat16(), random_tokens(2, 27)
    ours = recurrent(model, layers=(1, 3), schedule=CACHED)
    torch.testing.assert_close(ours(tokens).logits, model(tokens).logits, rtol=0, atol=0.02)


# Every family with a cache, and every schedule with one family.
CACHED = CachedStaircase(chunk_size=4, num_window_chunks=7, num_passes=3)
BEGINNINGS = [(name, CACHED) for name in CONFIGS] + [
    ("llama", Staircase(chunk_size=4, num_passes=7)),
    ("llama", GlobalCachedStaircase(chunk_size=5, num_passes=2)),
    ("gpt2", Ladder(num_passes=3, span=30)),
]


@pytest.mark.parametrize(("name", "schedule"), BEGINNINGS)
def test_more_passes_begin_with_the_loss_of_the_original_and_learn_to_differ(name, schedule):
    model, tokens = original(name), random_tokens(2, 27)
    with torch.no_grad():
        expected = model(tokens, labels=tokens).loss
    ours = recurrent(model, layers=(1, 3), schedule=schedule)
    loss = ours(tokens, labels=tokens).loss
    torch.testing.assert_close(loss, expected, rtol=0, atol=2e-6)
    loss.backward()
    gates = ours.sequence_model.core.gates
    assert gates[2].eq(float(schedule.name in ("ladder", "global-cached-staircase"))).all()
    assert gates[:2].eq(0).all()
    assert gates.grad[0].abs().max() > 0 or gates.grad[2].abs().max() > 0
    assert (gates.grad[1].abs().max() > 0) == ("cached" in schedule.name)


@pytest.mark.parametrize("name", ["llama-scaled", "gpt2"])
@pytest.mark.parametrize("schedule", SCHEDULES, ids=by_name)
@torch.no_grad()
def test_splitting_a_stream_and_resetting_rows_leaves_logits_unchanged(name, schedule):
    model, tokens = opened(name, schedule).double(), random_tokens(3, 21)
    whole = model(tokens).logits
    cache, parts = StateCache(), []
    for piece in tokens.split([5, 1, 1, 8, 6], dim=1):
        parts.append(model(piece, past_key_values=cache, use_cache=True).logits)
    # Norms of all families but GPT-2 are computed in float32.
    close = {"rtol": 0, "atol": 1e-9 if name == "gpt2" else 1e-5}
    torch.testing.assert_close(torch.cat(parts, dim=1), whole, **close)
    state = cache.state.reset([False, True, False])
    later, _ = model.sequence_model(tokens[:, :9], state)
    torch.testing.assert_close(later[1], whole[1, :9], **close)


@torch.no_grad()
def test_an_exported_step_has_the_learned_positions_of_the_original(tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    model = opened("gpt2", SCHEDULES[0]).sequence_model
    tokens, state = random_tokens(2, 9), DecodingStep(model).initial_state(2)
    session = runtime.InferenceSession(export_onnx(model, tmp_path / "step.onnx"))
    names, given = [one.name for one in session.get_inputs()], [part.numpy() for part in state]
    for token, expected in zip(tokens.T, model(tokens)[0].unbind(1), strict=True):
        logits, _, *given = session.run(
            None, dict(zip(names, [token.numpy(), *given], strict=True))
        )
        torch.testing.assert_close(torch.from_numpy(logits), expected, rtol=0, atol=1e-5)


def test_prelude_and_coda_see_all_that_they_saw_before():
    model = opened("llama", Staircase(chunk_size=2, num_passes=2))
    tokens = random_tokens(1, 30)
    state = model(tokens, use_cache=True).past_key_values.state
    held = {layer: kept.num_tokens for (_, layer), kept in state.streams[0].banks.items()}
    # Of the recurrence, the latest chunk of 2; then the prelude and the coda.
    assert held == {0: 2, 1: 2, 2: 30, 3: 30}


@pytest.mark.parametrize("schedule", SCHEDULES[:2], ids=by_name)
def test_generation_with_padding_equals_each_row_alone_without_a_cache(schedule):
    model = opened("llama", schedule)
    rows = [random_tokens(1, length, seed=length)[0] for length in (3, 8)]
    padded = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_side="left")
    made = model.generate(
        padded, attention_mask=padded.ne(0).long(), max_new_tokens=6, do_sample=False
    )
    for row, found in zip(rows, made, strict=True):
        alone = model.generate(row[None], max_new_tokens=6, do_sample=False, use_cache=False)
        assert found[-6:].equal(alone[0, -6:])


@pytest.mark.parametrize("name", ["llama", "qwen2", "gpt2"])
@torch.no_grad()
def test_a_saved_model_is_the_same_when_loaded(name, tmp_path):
    model, tokens = opened(name, SCHEDULES[1]), random_tokens(2, 17)
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert type(loaded) is type(model)
    assert loaded.sequence_model.schedule == SCHEDULES[1]
    assert loaded(tokens).logits.equal(model(tokens).logits)
    is_tied = CONFIGS[name].tie_word_embeddings
    embedding, output = loaded.get_input_embeddings(), loaded.get_output_embeddings()
    assert (embedding.weight is output.weight) == is_tied
    loaded.resize_token_embeddings(VOCAB_SIZE + 3)
    loaded.save_pretrained(tmp_path / "larger")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "larger")
    assert again(tokens).logits.equal(loaded(tokens).logits)


@pytest.mark.parametrize("checkpointing", [False, True])
def test_trainer_lowers_the_loss(checkpointing, tmp_path):
    model = recurrent(original(), layers=(1, 3), schedule=SCHEDULES[0])
    rows = [{"input_ids": row, "labels": row} for row in random_tokens(8, 16)]
    settings = TrainingArguments(
        output_dir=tmp_path,
        max_steps=6,
        per_device_train_batch_size=8,
        learning_rate=1e-2,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        gradient_checkpointing=checkpointing,
    )
    trainer = Trainer(model=model, args=settings, train_dataset=rows)
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert losses[-1] < losses[0] - 0.1
    assert model.sequence_model.core.gates[0].abs().max() > 0


def test_recomputed_activations_give_the_same_gradients():
    model, tokens = opened("llama", SCHEDULES[1]).train(), random_tokens(2, 13)
    gradients = []
    for enable in (False, True):
        if enable:
            model.gradient_checkpointing_enable()
        model.zero_grad()
        model(tokens, labels=tokens).loss.backward()
        gradients.append([parameter.grad.clone() for parameter in model.parameters()])
    assert model.sequence_model.recompute
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)


class LowRank(nn.Module):
    """A frozen projection and a small one beside it, as an adapter has them."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner.requires_grad_(False)
        self.small = nn.Linear(inner.in_features, inner.out_features, bias=False)

    def forward(self, vectors):
        return self.inner(vectors) + self.small(vectors)


def test_adapters_inside_of_layers_take_effect_in_every_pass():
    model, tokens = opened("llama", SCHEDULES[1]), random_tokens(1, 13)
    before = model(tokens).logits
    attention = model.sequence_model.core.layers[0].layer.self_attn
    attention.k_proj = LowRank(attention.k_proj)
    logits = model(tokens, labels=tokens)
    logits.loss.backward()
    assert attention.k_proj.small.weight.grad.abs().max() > 0
    assert not logits.logits.equal(before)


def test_low_rank_adapters_of_peft_are_trained_and_saved(tmp_path):
    model, tokens = recurrent(original(), layers=(1, 3), schedule=SCHEDULES[0]), random_tokens(2, 9)
    config = peft.LoraConfig(target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    adapted = peft.get_peft_model(model, config)
    adapted(input_ids=tokens, labels=tokens).loss.backward()
    assert adapted.generate(input_ids=tokens, max_new_tokens=3).shape == (2, 12)
    adapted.save_pretrained(tmp_path)


@pytest.mark.parametrize(
    ("schedule", "layers", "message"),
    [
        (Ladder(num_passes=2, span=8, order="AABB"), (1, 3), "passes go through all layers"),
        (FeedbackTransformer(span=8), (1, 3), "tokens attend to themselves"),
        (MemoryNetwork(span=8), (1, 3), "cached, by layer, after a pass"),
        (SCHEDULES[0], (3, 3), "layers must be"),
        (SCHEDULES[0], (1, 5), "layers must be"),
        (SCHEDULES[0], (1, 2, 3), "layers must be"),
    ],
)
def test_what_cannot_recur_is_refused_in_one_line(schedule, layers, message):
    with pytest.raises(ValueError, match=message) as refused:
        recurrent(original(), layers=layers, schedule=schedule)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("model", ["gpt2", lambda: original().model])
def test_what_is_no_language_model_is_refused_in_one_line(model):
    with pytest.raises(ValueError, match="must be a causal language model of Transformers, got"):
        recurrent(
            model if isinstance(model, str) else model(), layers=(1, 3), schedule=SCHEDULES[0]
        )


def test_other_models_are_refused():
    options = {"layers": (1, 3), "schedule": SCHEDULES[0]}
    mistral = AutoModelForCausalLM.from_config(MistralConfig(**SHAPE))
    with pytest.raises(ValueError, match=r"must be one of gpt2, .* got 'mistral'"):
        recurrent(mistral, **options)
    sliding = Qwen2Config(**SHAPE, use_sliding_window=True, sliding_window=4, max_window_layers=1)
    with pytest.raises(
        ValueError, match=r"full attention in every layer, .* got sliding_attention"
    ):
        recurrent(AutoModelForCausalLM.from_config(sliding), **options)
    scaled = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
    stretched = {"rope_type": "longrope", "rope_theta": 1e4, "factor": 2.0}
    stretched |= {"short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
    stretched |= {"original_max_position_embeddings": 64}
    for rope in (scaled, stretched):
        growing = AutoModelForCausalLM.from_config(LlamaConfig(**SHAPE, rope_parameters=rope))
        with pytest.raises(ValueError, match=f"the length of a text, got {rope['rope_type']}"):
            recurrent(growing, **options)


def test_learned_positions_end():
    model = opened("gpt2", SCHEDULES[0])
    cache = model(random_tokens(1, 60), use_cache=True).past_key_values
    with pytest.raises(ValueError, match="learned positions for 64 tokens of a stream, got 65"):
        model(random_tokens(1, 5), past_key_values=cache)
