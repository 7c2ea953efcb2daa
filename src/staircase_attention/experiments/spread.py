"""A number that was measured several times."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Spread:
    """A mean over runs, and how far single runs lie from it."""

    mean: float
    deviation: float | None = None
    """Standard deviation over the runs; None where there is only one."""

    @classmethod
    def over(cls, values: Sequence[float]) -> "Spread | None":
        """Of some runs: the deviation is that of a sample, with n - 1 below the line.

        >>> print(Spread.over([1.0, 2.0, 3.0]), "and", Spread.over([1.0]), "and", Spread.over([]))
        2.0 ± 1.0 and 1.0 ± - and None
        """
        if not values:
            return None
        deviation = statistics.stdev(values) if len(values) > 1 else None
        return cls(mean=statistics.fmean(values), deviation=deviation)

    def __str__(self) -> str:
        return self.shown(1)

    def shown(self, digits: int) -> str:
        """With that many digits after the point.

        >>> Spread(0.1234, 0.05).shown(2)
        '0.12 ± 0.05'
        """
        deviation = "-" if self.deviation is None else f"{self.deviation:.{digits}f}"
        return f"{self.mean:.{digits}f} ± {deviation}"
