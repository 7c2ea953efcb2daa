"""What is computed when: every model of the family as a timetable of plain data."""

from staircase_attention.schedules.ladder import Ladder as Ladder
from staircase_attention.schedules.ladder import ParallelLoop as ParallelLoop
from staircase_attention.schedules.ladder import TransformerXL as TransformerXL
from staircase_attention.schedules.ladder import UniversalTransformer as UniversalTransformer
from staircase_attention.schedules.schedule import OUTSIDE as OUTSIDE
from staircase_attention.schedules.schedule import SCHEDULES as SCHEDULES
from staircase_attention.schedules.schedule import PaperRow as PaperRow
from staircase_attention.schedules.schedule import Schedule as Schedule
from staircase_attention.schedules.schedule import check_steps as check_steps
from staircase_attention.schedules.schedule import make_schedule as make_schedule
from staircase_attention.schedules.schedule import schedule_from_dict as schedule_from_dict
from staircase_attention.schedules.schedule import schedule_kind as schedule_kind
from staircase_attention.schedules.stairs import CachedStaircase as CachedStaircase
from staircase_attention.schedules.stairs import FeedbackTransformer as FeedbackTransformer
from staircase_attention.schedules.stairs import GlobalCachedStaircase as GlobalCachedStaircase
from staircase_attention.schedules.stairs import MemoryNetwork as MemoryNetwork
from staircase_attention.schedules.stairs import Staircase as Staircase
from staircase_attention.schedules.timetable import CARRIED as CARRIED
from staircase_attention.schedules.timetable import Cell as Cell
from staircase_attention.schedules.timetable import Depth as Depth
from staircase_attention.schedules.timetable import Ledger as Ledger
from staircase_attention.schedules.timetable import Order as Order
from staircase_attention.schedules.timetable import Step as Step
from staircase_attention.schedules.timetable import joined as joined
from staircase_attention.schedules.timetable import num_positions as num_positions
from staircase_attention.schedules.timetable import overlap as overlap
from staircase_attention.schedules.timetable import pieces as pieces

for _kind in (
    *(Staircase, CachedStaircase, GlobalCachedStaircase, Ladder, TransformerXL),
    *(UniversalTransformer, ParallelLoop, FeedbackTransformer, MemoryNetwork),
):
    SCHEDULES[_kind.name] = _kind
