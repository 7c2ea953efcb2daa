"""What is computed when: every model of the family as a timetable of plain data."""

from staircase_attention.schedules.ladder import (
    Ladder,
    ParallelLoop,
    TransformerXL,
    UniversalTransformer,
)
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
    CARRIED,
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
    ParallelLoop,
    FeedbackTransformer,
    MemoryNetwork,
):
    SCHEDULES[_kind.name] = _kind

__all__ = [
    "CARRIED",
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
    "ParallelLoop",
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
