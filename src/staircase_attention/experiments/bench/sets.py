"""Subjects by name: the two sets that are compared with others, and every recipe.

`engine` holds the four sizes at which the authors' public code was timed, `relative` the models of
the Reddit table at one of them, beside a GPT-2. In both dropout is 0, corpora need not be there,
and numbers are bfloat16 on a GPU, float32 elsewhere.
"""

import dataclasses
import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from staircase_attention.checks import check_choice
from staircase_attention.experiments.bench.subject import Subject, subject_of, symbols_of
from staircase_attention.experiments.recipes import find_recipe, recipes
from staircase_attention.training import Recipe


@dataclass(frozen=True, kw_only=True, slots=True)
class SetRow:
    """One row of a named set."""

    recipe: str
    """The recipe that it is made from."""
    width: int
    num_layers: int
    num_heads: int
    segment_length: int
    num_lanes: int
    vocab_size: int | None = None
    """Symbols; None: those of the task."""
    from_transformers: bool = False
    """Whether it is a GPT-2 of these sizes instead."""


def reddit_row(recipe: str, **options: Any) -> SetRow:  # noqa: ANN401
    """A model of the Reddit table, with fewer lanes than the paper's."""
    return SetRow(
        recipe=f"reddit/{recipe}",
        width=1024,
        num_layers=8,
        num_heads=8,
        segment_length=256,
        num_lanes=32,
        vocab_size=8008,
        **options,
    )


SETS: dict[str, dict[str, SetRow]] = {
    "engine": {
        "algorithm": SetRow(
            recipe="algorithm/staircase-n4-c16",
            width=256,
            num_layers=4,
            num_heads=4,
            segment_length=128,
            num_lanes=256,
        ),
        "random-walk": SetRow(
            recipe="random-walk/staircase-n8-c8",
            width=256,
            num_layers=4,
            num_heads=4,
            segment_length=128,
            num_lanes=512,
        ),
        "enwik8": SetRow(
            recipe="enwik8/staircase-n4-c64",
            width=512,
            num_layers=8,
            num_heads=8,
            segment_length=256,
            num_lanes=128,
            vocab_size=256,
        ),
        "reddit": reddit_row("staircase-n8-c32"),
    },
    "relative": {
        "transformer-xl": reddit_row("transformer-xl"),
        "cached-staircase-c128": reddit_row("cached-staircase-c128"),
        "staircase-n8-c32": reddit_row("staircase-n8-c32"),
        "ladder-8": reddit_row("ladder-8"),
        "feedback": reddit_row("feedback"),
        "gpt-2": reddit_row("transformer-xl", from_transformers=True),
    },
}
"""Named sets, row by row."""
BASELINES = {"relative": "transformer-xl"}
"""The row by whose time the others of a set are divided."""


def find_subjects(
    names: Sequence[str], *, overrides: Mapping[str, Any], device: torch.device
) -> tuple[list[Subject], list[str]]:
    """The subjects that are asked for, each once, and what to say of those left out."""
    rows = {f"{name}/{row}": (name, row) for name, rows in SETS.items() for row in rows}
    found: dict[str, Subject] = {}
    notes: list[str] = []
    for name in names:
        _check_name(name, rows)
        for row in SETS.get(name, ()) if name in SETS else (None,):
            full = name if row is None else f"{name}/{row}"
            if full in found:
                continue
            if full not in rows:
                found[full] = subject_of(find_recipe(full).override(overrides))
            elif is_possible(full, notes):
                found[full] = _set_subject(*rows[full], overrides=overrides, device=device)
    if not found:
        raise ValueError(notes[0] if notes else "bench needs a recipe or a set, got none; name one")
    return list(found.values()), notes


def is_possible(name: str, notes: list[str]) -> bool:
    """Whether what a row of a set needs is installed; if not, a note says so."""
    row = SETS[name.partition("/")[0]][name.partition("/")[2]]
    if not row.from_transformers or importlib.util.find_spec("transformers") is not None:
        return True
    note = (
        f"{name} needs the package transformers, got none installed; "
        "pip install 'staircase-attention[huggingface]'"
    )
    if note not in notes:
        notes.append(note)
    return False


def _check_name(name: str, rows: Mapping[str, Any]) -> None:
    check_choice("a recipe or set to bench", name, [*SETS, *rows, *recipes()])


def _set_subject(
    name: str, row: str, *, overrides: Mapping[str, Any], device: torch.device
) -> Subject:
    size = SETS[name][row]
    recipe = _set_recipe(f"{name}/{row}", size, device).override(overrides)
    symbols = symbols_of(recipe) if size.vocab_size is None else (size.vocab_size,) * 2
    baseline = BASELINES.get(name)
    return Subject(
        recipe=recipe,
        num_inputs=symbols[0],
        num_outputs=symbols[1],
        maker="transformers" if size.from_transformers else "staircase-attention",
        baseline=None if baseline is None else f"{name}/{baseline}",
    )


def _set_recipe(name: str, size: SetRow, device: torch.device) -> Recipe:
    """The recipe of a row before the user's own settings."""
    sized = find_recipe(size.recipe).override(
        {
            "model.core.width": size.width,
            "model.core.num_layers": size.num_layers,
            "model.core.num_heads": size.num_heads,
            "model.core.dropout": 0.0,
            "model.core.embedding_dropout": 0.0,
            "training.segment_length": size.segment_length,
            "training.num_lanes": size.num_lanes,
            "training.precision": "bfloat16" if device.type == "cuda" else "float32",
        }
    )
    return dataclasses.replace(sized, name=name)
