"""Comments that are left out for what they say: nothing by default, the usual rules by name."""

import re
from dataclasses import dataclass

from staircase_attention.checks import input_error

LINK = re.compile(r"https?://|\bwww\.", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True, slots=True)
class Filters:
    """What a comment must be like; one that is not counts as removed, with its consequences.

    >>> Filters().allow("http://example.org"), Filters.of_roller().allow("http://example.org")
    (True, False)
    """

    fewest_characters: int = 1
    """Characters of the shortest comment."""
    most_characters_without_space: int | None = None
    """Characters of the longest comment that has no space in it; None for any."""
    with_links: bool = True
    """Whether a comment may have the address of a page in it."""
    with_foreign_start: bool = True
    """Whether the first character may be outside ASCII."""

    def __post_init__(self) -> None:
        """Refuse limits that are none."""
        for name in ("fewest_characters", "most_characters_without_space"):
            limit = getattr(self, name)
            if limit is not None and (not isinstance(limit, int) or limit < 1):
                rule = f"{name} must be a whole number of at least 1"
                raise input_error(rule, repr(limit), f"use for example {name}=5")

    @classmethod
    def of_roller(cls) -> "Filters":
        """The rules of Roller et al. (2020), to whom the paper refers, that need no more than text.

        Their limit on depth is `maximum_depth` of the options. Two are not here: at most 128 BPE
        tokens, as that needs their tokeniser, and English subreddits, as that needs their list.
        """
        return cls(
            fewest_characters=5,
            most_characters_without_space=2048,
            with_links=False,
            with_foreign_start=False,
        )

    def allow(self, text: str) -> bool:
        """Whether a cleaned text, which is not empty, may stay."""
        if len(text) < self.fewest_characters:
            return False
        limit = self.most_characters_without_space
        if limit is not None and len(text) > limit and not any(map(str.isspace, text)):
            return False
        if not self.with_foreign_start and not text[0].isascii():
            return False
        return self.with_links or LINK.search(text) is None
