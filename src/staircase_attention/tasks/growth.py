"""Training episodes that are short at first."""

from dataclasses import dataclass, replace

from staircase_attention.checks import check_integer


@dataclass(frozen=True, kw_only=True, slots=True)
class Growth:
    """Episodes are cut to their first tokens, to twice as many again and again, and then no more.

    What comes late in an episode cannot be learnt before what comes early: short ones are all
    early. The shortest may take longer than all others, where a rule has to be learnt first that
    is only applied again and again later.

    >>> growth = Growth(first_tokens=32, double_every=500, num_doublings=2)
    >>> [growth.longest(update) for update in (0, 499, 500, 999, 1000)]
    [32, 32, 64, 64, None]
    >>> growth = Growth(first_tokens=4, first_updates=900, double_every=300, num_doublings=2)
    >>> [growth.longest(update) for update in (0, 899, 900, 1199, 1200)]
    [4, 4, 8, 8, None]
    """

    first_tokens: int | None = None
    """Tokens of an episode at first; None: whole episodes from the beginning."""
    first_updates: int | None = None
    """Updates before they are twice as many for the first time; None: `double_every`."""
    double_every: int = 500
    """Updates after which they are twice as many again."""
    num_doublings: int = 4
    """How often; the last time, episodes are whole."""

    def __post_init__(self) -> None:
        """Refuse what does not grow."""
        group = "training.growth"
        if self.first_tokens is not None:
            check_integer(
                f"{group}.first_tokens", self.first_tokens, minimum=2, maximum=2**30, example=32
            )
        if self.first_updates is not None:
            check_integer(f"{group}.first_updates", self.first_updates, minimum=1, example=900)
        check_integer(f"{group}.double_every", self.double_every, minimum=1, example=500)
        check_integer(
            f"{group}.num_doublings", self.num_doublings, minimum=1, maximum=32, example=4
        )

    def longest(self, update: int) -> int | None:
        """Tokens of an episode in an update, the first being 0; None: all."""
        held = self.double_every if self.first_updates is None else self.first_updates
        doublings = max(0, 1 + (update - held) // self.double_every)
        if self.first_tokens is None or doublings >= self.num_doublings:
            return None
        return self.first_tokens << doublings

    def grows_at(self, update: int) -> bool:
        """Whether episodes are longer than in the update before."""
        return update > 0 and self.longest(update) != self.longest(update - 1)

    def in_proportion(self, num_updates: int, whole: int) -> "Growth":
        """The same for a run of so many updates that is set for another number, the whole.

        >>> Growth(first_tokens=8, first_updates=90, double_every=60).in_proportion(100, 300)
        Growth(first_tokens=8, first_updates=30, double_every=20, num_doublings=4)
        """
        if self.first_tokens is None:
            return self
        first = self.first_updates
        return replace(
            self,
            first_updates=None if first is None else max(1, first * num_updates // whole),
            double_every=max(1, self.double_every * num_updates // whole),
        )
