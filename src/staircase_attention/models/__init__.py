"""Embeds tokens, executes a timetable, projects; what a stream remembers; what it costs."""

from staircase_attention.models.backend import Backend, CoreRunner, PlainBackend
from staircase_attention.models.cost import Cost, measure_cost
from staircase_attention.models.depth import at_depth, in_passes_of, passes_of
from staircase_attention.models.exits import ExitBackend, with_exits
from staircase_attention.models.lstm import LSTMSequenceModel, LSTMState
from staircase_attention.models.sequence_model import SequenceModel
from staircase_attention.models.state import State, Stream
from staircase_attention.models.state_file import load_state, put_together, save_state, take_apart

__all__ = [
    "Backend",
    "CoreRunner",
    "Cost",
    "ExitBackend",
    "LSTMSequenceModel",
    "LSTMState",
    "PlainBackend",
    "SequenceModel",
    "State",
    "Stream",
    "at_depth",
    "in_passes_of",
    "load_state",
    "measure_cost",
    "passes_of",
    "put_together",
    "save_state",
    "take_apart",
    "with_exits",
]
