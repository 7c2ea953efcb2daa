"""Floating-point operations of an update, and bytes of weights that a new token needs."""

from staircase_attention.experiments.bench.gpt2 import gpt2_flops
from staircase_attention.experiments.bench.subject import Subject
from staircase_attention.models import LSTMSequenceModel, SequenceModel
from staircase_attention.models.cost import segment_cost, warm_up_length
from staircase_attention.schedules import Schedule
from staircase_attention.training import FamilyModel, LSTMModel

TRAINING_FACTOR = 3
"""An update costs a forward pass and, twice as much, a backward pass."""


def reach_of(subject: Subject) -> int:
    """Tokens after which a stream is in full swing, or nearly so where its state has no bound."""
    model = subject.recipe.model
    return model.schedule.default_max_distance if isinstance(model, FamilyModel) else 1


def update_flops(subject: Subject) -> int:
    """Operations of all lanes of one update; computing activations again is not counted."""
    return TRAINING_FACTOR * subject.recipe.training.num_lanes * forward_flops(subject)


def forward_flops(subject: Subject) -> int:
    """Forward operations of a segment of one lane in the midst of its stream."""
    model, length = subject.recipe.model, subject.recipe.training.segment_length
    if subject.maker == "transformers":
        return gpt2_flops(subject)
    if isinstance(model, LSTMModel):
        gates = model.num_layers * 2 * 4 * 2 * model.width**2
        return length * (gates + 2 * model.width * subject.num_outputs)
    cost = segment_cost(
        core=model.core,
        schedule=model.schedule,
        output_size=subject.num_outputs,
        start=warm_up_length(model.schedule, length) if subject.carries_state else 0,
        segment=length,
    )
    return cost.flops


def num_passes(schedule: Schedule, *, num_layers: int) -> int:
    """How often one new token takes the whole core to be read.

    >>> from staircase_attention import Ladder, Staircase
    >>> num_passes(Staircase(chunk_size=8, num_passes=4), num_layers=2)
    4
    >>> num_passes(Ladder(num_passes=3, span=16, order="AABB"), num_layers=2)
    3
    """
    start = warm_up_length(schedule, schedule.chunk_length)
    steps = schedule.steps(range(start, start + 1), num_layers=num_layers, order="window")
    return sum(len(step.layers) for step in steps) // num_layers


def token_weight_bytes(model: SequenceModel | LSTMSequenceModel) -> int:
    """Bytes of weights that a round of new tokens reads: the core once a pass, the rest once.

    Of the embedding only a row a token is read, which is left out.
    """
    passes = 1
    if isinstance(model, SequenceModel):
        passes = num_passes(model.schedule, num_layers=model.config.num_layers)
    return sum(
        weight.numel() * weight.element_size() * (passes if name.startswith("core.") else 1)
        for name, weight in model.named_parameters()
        if not name.startswith("embedding.")
    )
