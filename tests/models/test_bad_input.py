"""What a user can get wrong is refused in one line: the rule, what came, the way out."""

from dataclasses import fields, replace

import pytest
import torch

from building import build, example_models, random_tokens
from staircase_attention import (
    CachedStaircase,
    CoreConfig,
    FeedbackTransformer,
    Ladder,
    SequenceModel,
    Staircase,
    TransformerXL,
    UniversalTransformer,
)

CORE = {"width": 8, "num_layers": 2, "num_heads": 2}

WRONG = {
    "M over N": lambda: CachedStaircase(chunk_size=2, num_window_chunks=2, num_passes=3),
    "unknown order": lambda: Ladder(num_passes=2, span=4, order="BABA"),
    "unknown memory": lambda: FeedbackTransformer(span=4, memory="bottom"),
    "flag that is none": lambda: FeedbackTransformer(span=4, attend_self="yes"),
    "heads that do not divide": lambda: CoreConfig(width=10, num_layers=2, num_heads=3),
    "dropout of one": lambda: CoreConfig(**CORE, dropout=1.0),
    "negative dropout": lambda: CoreConfig(**CORE, embedding_dropout=-0.1),
    "attention dropout of one": lambda: CoreConfig(**CORE, attention_dropout=1.0),
    "dropout in words": lambda: CoreConfig(**CORE, dropout="much"),
    "unknown positions": lambda: CoreConfig(**CORE, positions="absolute"),
    "odd rotary heads": lambda: CoreConfig(width=6, num_layers=1, num_heads=2, positions="rotary"),
    "rotary with a table": lambda: CoreConfig(**CORE, positions="rotary", max_distance=9),
    "deep universal": lambda: SequenceModel(
        vocab_size=4,
        core=CoreConfig(**CORE),
        schedule=UniversalTransformer(num_passes=2, span=4),
    ),
    "no vocabulary": lambda: SequenceModel(
        vocab_size=0, core=CoreConfig(**CORE), schedule=TransformerXL(span=4)
    ),
    "vocabulary in words": lambda: SequenceModel(
        vocab_size="many", core=CoreConfig(**CORE), schedule=TransformerXL(span=4)
    ),
    "no outputs": lambda: SequenceModel(
        vocab_size=4, output_size=0, core=CoreConfig(**CORE), schedule=TransformerXL(span=4)
    ),
    "core and schedule swapped": lambda: SequenceModel(
        vocab_size=4, core=TransformerXL(span=4), schedule=CoreConfig(**CORE)
    ),
}

MODEL = build(Staircase(chunk_size=3, num_passes=2))


def other_state(schedule, batch_size=2):
    return build(schedule)(random_tokens(batch_size, 4))[1]


WRONG_CALLS = {
    "tokens that are not integers": (torch.zeros(2, 3), None),
    "a list of tokens": ([[1, 2]], None),
    "one sequence without a batch": (torch.zeros(3, dtype=torch.int64), None),
    "no rows": (torch.zeros(0, 3, dtype=torch.int64), None),
    "an id too high": (torch.full((2, 3), 7), None),
    "an id below zero": (torch.full((2, 3), -1), None),
    "a state of another schedule": (random_tokens(2, 3), other_state(TransformerXL(span=3))),
    "a state of another batch": (
        random_tokens(2, 3),
        other_state(Staircase(chunk_size=3, num_passes=2), batch_size=3),
    ),
    "a state in other numbers": (
        random_tokens(2, 3),
        other_state(Staircase(chunk_size=3, num_passes=2)).to(dtype=torch.float32),
    ),
    "something that is no state": (random_tokens(2, 3), {"position": 3}),
    "an unknown order": (random_tokens(2, 3), None, {"order": "backwards"}),
}


GIVEN = [
    *(model.schedule for model in example_models()),
    CoreConfig(**CORE, max_distance=4, feed_forward_width=4),
]


@pytest.mark.parametrize("given", GIVEN, ids=repr)
def test_every_number_of_a_config_must_be_an_integer_that_is_not_too_low(given):
    numbers = [field for field in fields(given) if type(getattr(given, field.name)) is int]
    assert numbers
    for number in numbers:
        for wrong in (number.metadata.get("minimum", 1) - 1, 0.5, True, "4"):
            rule = rf"{number.name} must be .*got .*; use for example"
            with pytest.raises(ValueError, match=rule):
                replace(given, **{number.name: wrong})


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_config_is_refused(name):
    with pytest.raises(ValueError, match=r"got .*; ") as caught:
        WRONG[name]()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", WRONG_CALLS)
def test_a_wrong_call_is_refused_before_any_work(name, monkeypatch):
    monkeypatch.setattr(MODEL.core, "forward", lambda *_, **__: pytest.fail("work was done"))
    tokens, state, *options = WRONG_CALLS[name]
    with pytest.raises(ValueError, match=r"got .*; ") as caught:
        MODEL(tokens, state, **dict(*options))
    assert "\n" not in str(caught.value)


def test_no_tokens_at_all_give_no_logits_and_the_same_state():
    _, state = MODEL(random_tokens(2, 4))
    logits, after = MODEL(random_tokens(2, 0), state)
    assert logits.shape == (2, 0, 5)
    assert after.lengths == state.lengths
    assert after.num_bytes == state.num_bytes
