"""Models, prompts and texts for the tests of generation."""

import torch
from hypothesis import strategies as st

from building import OUTPUT_SIZE, VOCAB_SIZE, example_models, name_of
from staircase_attention.generation import SamplingConfig, stream
from staircase_attention.models import LSTMSequenceModel

SAMPLED = SamplingConfig(
    temperature=1.3, top_k=4, top_p=0.95, min_p=0.01, repetition_penalty=1.2, repetition_window=6
)
GREEDY = SamplingConfig(temperature=0)
WILD = SamplingConfig(temperature=8.0)
LETTERS = [b"a", b"b", b"\xc3", b"\xa9", "€b".encode(), b"?", b"!"]
"""Tokens 2 and 3 are the halves of é; those from 5 on are inputs only."""

prompts = st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=1, max_size=14)


def encode(text):
    return [LETTERS.index(letter.encode()) for letter in text]


def decode(tokens):
    return b"".join(LETTERS[token] for token in tokens)


FUNCTIONS = {"encode": encode, "decode": decode}


def lstm() -> LSTMSequenceModel:
    torch.manual_seed(0)
    model = LSTMSequenceModel(
        vocab_size=VOCAB_SIZE, output_size=OUTPUT_SIZE, width=6, num_layers=2
    ).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, 0.7)
    return model.eval()


def all_models() -> list:
    return [*example_models(), lstm()]


def some_models() -> list:
    """Chunks of several tokens, chunks of one, and no chunks."""
    return [example_models()[1], example_models()[7], lstm()]


def name(model) -> str:
    return "lstm" if isinstance(model, LSTMSequenceModel) else name_of(model)


def made(tokens) -> dict[int, list[int]]:
    """The tokens of each row of a stream, to its end."""
    rows: dict[int, list[int]] = {}
    for new in tokens:
        rows.setdefault(new.row, []).append(new.token)
    return rows


def alone(model, prompt, row, **options) -> list[int]:
    """What a row of a batch gives when it is made alone."""
    return made(stream(model, prompt, row_numbers=[row], **options))[row]
