"""What is computed when: every model of the family as a timetable of plain data."""

from staircase_attention.schedules.ladder import Ladder, TransformerXL, UniversalTransformer
from staircase_attention.schedules.schedule import (
    OUTSIDE,
    SCHEDULES,
    PaperRow,
    Schedule,
    make_schedule,
    schedule_from_dict,
)
from staircase_attention.schedules.stairs import (
    CachedStaircase,
    FeedbackTransformer,
    GlobalCachedStaircase,
    MemoryNetwork,
    Staircase,
)
from staircase_attention.schedules.timetable import (
    Cell,
    Depth,
    Ledger,
    Order,
    Step,
    joined,
    num_positions,
    overlap,
    pieces,
)

for _kind in (
    Staircase,
    CachedStaircase,
    GlobalCachedStaircase,
    Ladder,
    TransformerXL,
    UniversalTransformer,
    FeedbackTransformer,
    MemoryNetwork,
):
    SCHEDULES[_kind.name] = _kind

__all__ = [
    "OUTSIDE",
    "SCHEDULES",
    "CachedStaircase",
    "Cell",
    "Depth",
    "FeedbackTransformer",
    "GlobalCachedStaircase",
    "Ladder",
    "Ledger",
    "MemoryNetwork",
    "Order",
    "PaperRow",
    "Schedule",
    "Staircase",
    "Step",
    "TransformerXL",
    "UniversalTransformer",
    "joined",
    "make_schedule",
    "num_positions",
    "overlap",
    "pieces",
    "schedule_from_dict",
]
