"""Embeds tokens, executes a timetable, projects; what a stream remembers; what it costs."""

from staircase_attention.models.sequence_model import SequenceModel
from staircase_attention.models.state import State
from staircase_attention.models.state_file import load_state, save_state

__all__ = ["SequenceModel", "State", "load_state", "save_state"]
