"""Schedules by name, for the command line and for saved files."""

import dataclasses
import difflib
from collections.abc import Mapping
from typing import Any

from staircase_attention.schedules.ladder import Ladder, TransformerXL, UniversalTransformer
from staircase_attention.schedules.schedule import Schedule
from staircase_attention.schedules.staircase import (
    CachedStaircase,
    GlobalCachedStaircase,
    Staircase,
)
from staircase_attention.schedules.tokenwise import FeedbackTransformer, MemoryNetwork

SCHEDULES: dict[str, type[Schedule]] = {
    kind.name: kind
    for kind in (
        Staircase,
        CachedStaircase,
        GlobalCachedStaircase,
        Ladder,
        TransformerXL,
        UniversalTransformer,
        FeedbackTransformer,
        MemoryNetwork,
    )
}
"""All models of the family."""


def make_schedule(name: str, options: Mapping[str, Any]) -> Schedule:
    """The schedule called `name` with these options.

    >>> make_schedule("staircase", {"chunk_size": 64, "num_passes": 4})
    Staircase(chunk_size=64, num_passes=4)
    """
    kind = SCHEDULES.get(name)
    if kind is None:
        nearest = difflib.get_close_matches(name, SCHEDULES, n=1)
        hint = (
            f"did you mean {nearest[0]!r}?"
            if nearest
            else "take one of these, or add yours to SCHEDULES"
        )
        raise ValueError(f"a schedule is one of {', '.join(SCHEDULES)}; got {name!r}; {hint}")
    fields = dataclasses.fields(kind)  # type: ignore[arg-type]
    known = [field.name for field in fields]
    required = [field.name for field in fields if field.default is dataclasses.MISSING]
    unknown = [option for option in options if option not in known]
    missing = [option for option in required if option not in options]
    if unknown or missing:
        wrong = [f"unknown {option}" for option in unknown] + [f"no {item}" for item in missing]
        example = " ".join(f"{option}=…" for option in known)
        raise ValueError(
            f"{name} takes {', '.join(known)}; got {', '.join(wrong)}; write {example}"
        )
    return kind(**options)


def schedule_from_dict(data: Mapping[str, Any]) -> Schedule:
    """The inverse of `Schedule.to_dict`."""
    options = dict(data)
    return make_schedule(options.pop("name"), options)
