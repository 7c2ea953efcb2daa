"""All that can be chosen about a Reddit dataset, in one place."""

from dataclasses import dataclass, field
from typing import Literal, get_args

from staircase_attention.checks import input_error
from staircase_attention.data.reddit.cleaning import Cleaning
from staircase_attention.data.reddit.splits import Fractions

Form = Literal["paths", "leaves", "threads"]
Gap = Literal["drop", "cut", "placeholder"]


@dataclass(frozen=True, kw_only=True, slots=True)
class RedditOptions:
    """What an example is, and how it is written."""

    form: Form = "paths"
    """'paths': every comment with all comments leading to it, as the paper has it; a comment is
    written again for each comment below it. 'leaves': only paths that no other path goes on
    from. 'threads': every thread once, each comment followed by its answers."""
    removed: Gap = "drop"
    """When a comment was deleted, or removed, or is a bot's, what of those below it: 'drop' them,
    since their path is not whole; 'cut' the path, which then begins below the gap; or write a
    'placeholder', [removed], in its place."""
    missing: Gap = "drop"
    """The same for a comment whose parent is in no file: its placeholder is [missing]."""
    maximum_depth: int | None = None
    """Comments in the longest path; deeper comments are no examples. None for no limit."""
    separator: str = "\n\n\n"
    """Between two comments of a path. No cleaned comment has three newlines in a row, so that a
    text can be taken apart again."""
    speakers: bool = False
    """Whether each comment begins with the mark of its author, 'A: ' for the first in a path."""
    cleaning: Cleaning = field(default_factory=Cleaning)
    """How bodies are cleaned, and whose are left out."""
    fractions: Fractions = field(default_factory=Fractions)
    """How much is held out."""

    def __post_init__(self) -> None:
        """Refuse what is no dataset."""
        for name, choices in (("form", Form), ("removed", Gap), ("missing", Gap)):
            value = getattr(self, name)
            if value not in get_args(choices):
                rule = f"{name} must be one of {', '.join(get_args(choices))}"
                raise input_error(rule, repr(value), f"use for example {get_args(choices)[0]!r}")
        if self.maximum_depth is not None and self.maximum_depth < 1:
            rule = "maximum_depth must be a whole number of at least 1"
            raise input_error(rule, self.maximum_depth, "use for example maximum_depth=7")
        if not self.separator:
            raise input_error("separator must have characters", "''", r"use for example '\n'")
