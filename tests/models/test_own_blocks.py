"""A block from a user's own file is run, remembered, cut, reset, saved and costed as our layers."""

import re
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from building import (
    ALL_SCHEDULES,
    EXACT,
    EXAMPLES,
    OUTPUT_SIZE,
    VOCAB_SIZE,
    build,
    feed,
    random_tokens,
    small,
    tokens,
)
from staircase_attention import (
    CoreConfig,
    SequenceModel,
    Staircase,
    UniversalTransformer,
    load_state,
    save_state,
)
from staircase_attention.layers import Block, KeysValues
from staircase_attention.models import measure_cost, with_exits
from staircase_attention.references import load_reference

FILE = Path(__file__).parents[1] / "examples" / "blocks.py"
REFERENCE = f"{FILE}:Modern"
SHAPE = {"width": 8, "num_heads": 2, "num_key_value_heads": 1, "feed_forward_width": 10}
SETTINGS = {"norm": "rms", "bias": False}
Modern = load_reference(REFERENCE, Block)


def cores(schedule, **others):
    """Our layers, and the user's blocks of the same shape."""
    num_layers = 1 if isinstance(schedule, UniversalTransformer) else 2
    shape = SHAPE | SETTINGS | {"num_layers": num_layers} | others
    ours = CoreConfig(positions="rotary", feed_forward="swiglu", **shape)
    return ours, CoreConfig(reference=REFERENCE, **shape)


def pair(schedule, *, seed=0, **others):
    """Two models with the same weights, and the names of weights in the second by the first's."""
    one, other = (build(schedule, core, seed=seed) for core in cores(schedule, **others))
    names = {}
    for name in one.state_dict():
        # Where all layers share keys and values, a user's blocks take those of the first.
        shared = name.replace("core.memory.norm", "core.layers.0.attention_norm")
        shared = re.sub(r"core\.memory\.(key|value)", r"core.layers.0.\1", shared)
        names[name] = re.sub(r"\.(attention|feed_forward)\.", ".", shared)
    weights = one.state_dict()
    if one.core.memory.shares_keys_values:
        weights["core.memory.norm.weight"].copy_(weights["core.layers.0.attention_norm.weight"])
    other.load_state_dict({names[name]: value for name, value in weights.items()}, strict=False)
    return one, other, names


@pytest.mark.parametrize("name", ALL_SCHEDULES)
@settings(max_examples=4)
@given(data=st.data(), cut=small(0, 9), order=st.sampled_from(["window", "chunk"]))
def test_a_users_block_equals_our_layer_of_the_same_weights(name, data, cut, order):
    schedule, batch = data.draw(ALL_SCHEDULES[name]), data.draw(tokens(max_batch=3, max_length=13))
    outside = {"num_prelude_layers": 1, "num_coda_layers": 1, "injection": "gated"}
    one, other, names = pair(schedule, **data.draw(st.sampled_from([{}, outside])))
    rows = data.draw(st.lists(st.booleans(), min_size=len(batch), max_size=len(batch)))
    found = []
    for model in (one, other):
        first, state = model(batch[:, :cut], order=order)
        second, _ = model(batch[:, cut:], state.reset(rows), order=order)
        found.append(torch.cat([first, second], dim=1))
    torch.testing.assert_close(*found, **EXACT)
    gradients = [
        dict(zip(dict(model.named_parameters()), gradient, strict=True))
        for model, logits in zip((one, other), found, strict=True)
        for gradient in [
            torch.autograd.grad(logits.square().sum(), [*model.parameters()], allow_unused=True)
        ]
    ]
    expected = {}
    for own, theirs in names.items():
        if gradients[0][own] is not None:
            expected[theirs] = expected.get(theirs, 0) + gradients[0][own]
    for theirs, gradient in expected.items():
        torch.testing.assert_close(gradients[1][theirs], gradient, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", EXAMPLES)
def test_its_stream_continues_from_a_file(name, tmp_path):
    _, model, _ = pair(EXAMPLES[name])
    batch = random_tokens(2, 23)
    logits, state = feed(model, [batch[:, :7], batch[:, 7:11]])
    save_state(state, tmp_path / "state.safetensors")
    later, _ = model(batch[:, 11:], load_state(tmp_path / "state.safetensors"))
    torch.testing.assert_close(torch.cat([logits, later], dim=1), model(batch)[0], **EXACT)


@pytest.mark.parametrize("name", EXAMPLES)
def test_its_cost_is_that_of_our_layer(name):
    sizes = {"vocab_size": VOCAB_SIZE, "output_size": OUTPUT_SIZE, "start": 4, "segment": 5}
    ours, theirs = (
        measure_cost(core=core, schedule=EXAMPLES[name], **sizes) for core in cores(EXAMPLES[name])
    )
    assert theirs.flops == ours.flops
    assert theirs.most_state_numbers == ours.most_state_numbers
    assert theirs.steps == ours.steps


def test_a_list_of_blocks_is_a_core():
    schedule = Staircase(chunk_size=3, num_passes=2)
    blocks = [Modern(**SHAPE) for _ in range(2)]
    model = SequenceModel(vocab_size=VOCAB_SIZE, core=blocks, schedule=schedule)
    assert [*model.core.layers] == blocks
    logits, state = model(random_tokens(2, 7))
    assert logits.shape == (2, 7, VOCAB_SIZE)
    cost = measure_cost(core=blocks, schedule=schedule, vocab_size=VOCAB_SIZE, segment=7, start=0)
    assert cost.num_parameters == model.num_parameters
    assert 4 * cost.state_numbers == state.num_bytes // 2
    assert not blocks[0].query.weight.is_meta


class Halved(Modern):
    """Heads of another size: its states are not for other blocks."""

    def keys_values(self, hidden):
        keys, values = super().keys_values(hidden)
        return KeysValues(keys, values[..., :2])


class Flat(Modern):
    def keys_values(self, hidden):
        return KeysValues(self.key(hidden), self.value(hidden))


class Nameless(Modern):
    def __init__(self, **shape):
        super().__init__(**shape)
        del self.width


class Narrow(Modern):
    def transform(self, hidden, context, *, view):
        return super().transform(hidden, context, view=view)[..., :2]


def core_of(**changes):
    return CoreConfig(**SHAPE | {"num_layers": 1, "reference": REFERENCE} | changes)


@pytest.mark.parametrize(
    ("core", "message"),
    [
        (list, "core must be a CoreConfig, or a list of blocks"),
        (lambda: [nn.Linear(8, 8)], "or a list of blocks .* of one width, got .'Linear'"),
        (lambda: [Modern(**SHAPE), Modern(**SHAPE | {"width": 4})], "of one width, got"),
        (lambda: [Nameless(**SHAPE)], "of one width, got .'Nameless'"),
        (lambda: [Flat(**SHAPE)], "keys_values of a block must give"),
        (lambda: core_of(qk_norm=True), "must be one that .* takes, got qk_norm=True"),
        (lambda: core_of(num_key_value_heads=None), "num_key_value_heads of .* must be given"),
        (lambda: core_of(options={"colour": 3}), "options of .*Modern must be among"),
        (lambda: core_of(reference=None, options={"colour": 3}), "options are for custom blocks"),
        (lambda: core_of(reference=f"{FILE}:View"), "must be a subclass of .*Block"),
    ],
)
def test_what_is_no_block_is_refused_in_one_line(core, message):
    with pytest.raises(ValueError, match=message) as refused:
        SequenceModel(vocab_size=9, core=core(), schedule=EXAMPLES["staircase"])
    assert "\n" not in str(refused.value)


def test_a_block_that_returns_other_shapes_is_refused():
    model = SequenceModel(vocab_size=9, core=[Narrow(**SHAPE)], schedule=EXAMPLES["staircase"])
    with pytest.raises(ValueError, match=r"Narrow.transform must return .*, got \(1, 3, 2\) for"):
        model(random_tokens(1, 3))


def test_a_state_of_other_blocks_is_refused():
    one, other = (
        SequenceModel(vocab_size=VOCAB_SIZE, core=[kind(**SHAPE)], schedule=EXAMPLES["staircase"])
        for kind in (Modern, Halved)
    )
    with pytest.raises(ValueError, match="a state must be of a model of the same shape"):
        other(random_tokens(1, 3), one(random_tokens(1, 3))[1])


def test_the_file_is_one_that_a_user_could_write():
    assert len(FILE.read_text().splitlines()) <= 60


def test_exits_are_refused_in_one_line():
    _, core = cores(EXAMPLES["ladder"])
    with pytest.raises(ValueError, match="built-in layers, got custom blocks; leave"):
        with_exits(build(EXAMPLES["ladder"], core), "change", 0.5)
