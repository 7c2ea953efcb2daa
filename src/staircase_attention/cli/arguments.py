"""What several commands share: arguments, options, and settings written name=value."""

import ast
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from staircase_attention import experiments
from staircase_attention.checks import check_integer, input_error
from staircase_attention.schedules import SCHEDULES

if TYPE_CHECKING:
    from staircase_attention.training.learner import Model


RecipeName = Annotated[
    str,
    typer.Argument(
        metavar="RECIPE",
        help="one of `staircase recipes`, or a JSON file of one",
        # Of these, typer offers those that start as the word does.
        autocompletion=lambda: list(experiments.recipes()),
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="PATH=VALUE",
        help="settings to change, as training.num_updates=1000 model.schedule.num_passes=2",
    ),
]
ScheduleName = Annotated[
    str,
    typer.Argument(
        metavar="SCHEDULE",
        help=f"one of {', '.join(SCHEDULES)}, or FILE.py:CLASS",
        autocompletion=lambda: list(SCHEDULES),
    ),
]
ScheduleOptions = Annotated[
    list[str] | None,
    typer.Argument(metavar="NAME=VALUE", help="its options, as chunk_size=64 num_passes=4"),
]
RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="run folder")]
TrainedRun = Annotated[
    Path, typer.Argument(metavar="RUN", help="run folder, packed run, or pretrained:NAME")
]
NewFolder = Annotated[Path, typer.Argument(metavar="FOLDER", help="output folder; must not exist")]
CheckpointName = Annotated[
    str, typer.Option(help="`best` on the validation data, `latest`, or an update.")
]
Logger = Annotated[str | None, typer.Option(help="Also log to wandb or mlflow, if installed.")]
DeviceName = Annotated[
    str | None, typer.Option("--device", help="cpu, cuda:1, ...; by default a GPU if there is one.")
]
TrustCode = Annotated[
    bool, typer.Option("--trust-code", help="Execute code named by the run folder, even untrusted.")
]
Quiet = Annotated[bool, typer.Option("--quiet", help="Show no progress; write no report of a run.")]
Passes = Annotated[
    str | None, typer.Option(metavar="N,N,...", help="Numbers of passes to compare, as 1,2,4,8.")
]
NumPasses = Annotated[
    int | None, typer.Option(metavar="N", help="Number of passes, if not the recipe's.")
]
ExitRule = Annotated[
    str | None,
    typer.Option(
        "--exit",
        metavar="RULE=NUMBER",
        help="Let tokens of a Ladder leave early: confidence=0.9 or change=0.1.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def parse_assignments(
    words: Iterable[str], parse: Callable[[str], Any] | None = None
) -> dict[str, Any]:
    """Settings from name=value words; values are Python literals, or else plain text.

    >>> parse_assignments(["num_passes=4", "order=AABB", "attend_self=true"])
    {'num_passes': 4, 'order': 'AABB', 'attend_self': True}
    >>> parse_assignments(["num_passes=2,4", "order=ABAB,AABB", "sizes=[1,2],[3]"], parse_values)
    {'num_passes': [2, 4], 'order': ['ABAB', 'AABB'], 'sizes': [[1, 2], [3]]}
    """
    options: dict[str, Any] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals or not all(part.isidentifier() for part in name.split(".")):
            rule = "a setting is written name=value"
            raise input_error(rule, repr(word), "use for example chunk_size=64")
        if name in options:
            raise input_error("a setting is given once", f"{name} twice", "leave one of them out")
        options[name] = (parse or parse_value)(text)
    return options


def parse_passes(text: str | None) -> list[int]:
    """Numbers of passes from --passes; none where it was not given.

    >>> parse_passes("1,2,4"), parse_passes(None)
    ([1, 2, 4], [])
    """
    numbers = [] if text is None else parse_values(text)
    for number in numbers:
        check_integer("--passes", number, minimum=1, example=4)
    return numbers


def with_passes(model: "Model", num_passes: int | None) -> "Model":
    """The same weights in another number of passes."""
    from staircase_attention.models import SequenceModel

    if num_passes is None:
        return model
    if not isinstance(model, SequenceModel):
        raise input_error("--passes is for schedules with num_passes", "lstm", "leave it out")
    return model.with_schedule(model.schedule.with_passes(num_passes))


def with_exit(model: "Model", text: str | None) -> "Model":
    """The same weights with exits, as --exit has them."""
    if text is None:
        return model
    from staircase_attention.models import with_exits

    rule, _, threshold = text.partition("=")
    return with_exits(model, rule, parse_value(threshold))  # type: ignore[arg-type]


def parse_value(text: str) -> Any:  # noqa: ANN401
    """A number, a flag, None, a list of these, or the text itself."""
    words = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return text


def parse_values(text: str) -> list[Any]:
    """The values between commas.

    >>> parse_values("[1, 2],{'a': 3, 'b': 4},'x,y'"), parse_values("ABAB,AABB")
    ([[1, 2], {'a': 3, 'b': 4}, 'x,y'], ['ABAB', 'AABB'])
    """
    try:
        values = ast.literal_eval(f"[{text}]")
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        # Bare words, or words among numbers: none of them has a comma inside.
        parts = [part.strip() for part in text.split(",")]
        values = [parse_value(part) for part in parts] if all(parts) else []
    if not values:
        rule = "varied values are written value,value"
        raise input_error(rule, repr(text), "use for example 32,64")
    return list(values)
