"""Embeds tokens, executes a timetable, projects; what a stream remembers; what it costs."""

from staircase_attention.models.backend import Backend as Backend
from staircase_attention.models.backend import CoreRunner as CoreRunner
from staircase_attention.models.backend import PlainBackend as PlainBackend
from staircase_attention.models.cost import Cost as Cost
from staircase_attention.models.cost import measure_cost as measure_cost
from staircase_attention.models.depth import at_depth as at_depth
from staircase_attention.models.depth import in_passes_of as in_passes_of
from staircase_attention.models.depth import passes_of as passes_of
from staircase_attention.models.exits import ExitBackend as ExitBackend
from staircase_attention.models.exits import with_exits as with_exits
from staircase_attention.models.lstm import LSTMSequenceModel as LSTMSequenceModel
from staircase_attention.models.lstm import LSTMState as LSTMState
from staircase_attention.models.sequence_model import SequenceModel as SequenceModel
from staircase_attention.models.state import State as State
from staircase_attention.models.state import Stream as Stream
from staircase_attention.models.state_file import load_state as load_state
from staircase_attention.models.state_file import put_together as put_together
from staircase_attention.models.state_file import save_state as save_state
from staircase_attention.models.state_file import take_apart as take_apart
