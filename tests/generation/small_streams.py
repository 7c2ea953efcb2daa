"""What the tests of generation have in common."""

import torch
from hypothesis import strategies as st

from building import OUTPUT_SIZE, VOCAB_SIZE, example_models, name_of
from staircase_attention.generation import SamplingConfig, stream
from staircase_attention.models import LSTMSequenceModel

SAMPLED = SamplingConfig(
    temperature=1.3, top_k=4, top_p=0.95, min_p=0.01, repetition_penalty=1.2, repetition_window=6
)
GREEDY = SamplingConfig(temperature=0)

prompts = st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=1, max_size=14)


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
    """For what the kind of model does not matter to: chunks of several tokens, of one, none."""
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
