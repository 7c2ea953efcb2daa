"""From bytes to text as they come: characters appear whole, and stop strings never appear.

A stop string may begin in one token and end inside another. So bytes that may be the beginning of
one are held back until it is clear that they are not; and of what is let go, the bytes of an
unfinished character wait for the rest of it.
"""

import codecs
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StopStrings:
    """Strings that end a text; what comes before is shown, they themselves are not.

    The one that is complete first ends the text; of several that end at the same byte, the longest.
    So the outcome does not depend on how the bytes are cut into tokens.
    """

    strings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not all(isinstance(one, str) and one for one in self.strings):
            raise ValueError(
                "a stop string must be a string of at least one character, "
                f"got {list(self.strings)}; leave out what is empty or no string"
            )

    def find(self, text: bytes) -> int | None:
        """Where the stop string begins that is complete first; None where none is complete."""
        found = []
        for stop in self._encoded():
            start = text.find(stop)
            if start >= 0:
                found.append((start + len(stop), start))
        return min(found)[1] if found else None

    def undecided(self, text: bytes) -> int:
        """How many bytes at the end may be the beginning of a stop string.

        >>> StopStrings(("END", "NDA")).undecided(b"the EN")
        2
        """
        longest = 0
        for stop in self._encoded():
            for size in range(min(len(stop) - 1, len(text)), longest, -1):
                if text.endswith(stop[:size]):
                    longest = size
                    break
        return longest

    def _encoded(self) -> list[bytes]:
        return [stop.encode() for stop in self.strings]


class TextTail:
    """The end of one row's text, which may not be shown yet: a few bytes, however long the text.

    >>> tail = TextTail(StopStrings(("END",)))
    >>> tail.feed(b"the E"), tail.feed(b"ast E"), tail.feed(b"NDED")
    (('the ', False), ('East ', False), ('', True))
    """

    def __init__(self, stops: StopStrings, *, held: bytes = b"", partial: bytes = b"") -> None:
        self.stops = stops
        self.held = held
        """Bytes that may be the beginning of a stop string."""
        # Bytes that are not UTF-8, of which a model can make any, appear as U+FFFD.
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._decoder.setstate((partial, 0))

    @property
    def partial(self) -> bytes:
        """The first bytes of an unfinished character."""
        return self._decoder.getstate()[0]

    def feed(self, new: bytes) -> tuple[str, bool]:
        """The text that can be shown now, and whether a stop string has ended it."""
        text = self.held + new
        start = self.stops.find(text)
        if start is not None:
            self.held = b""
            return self._decoder.decode(text[:start], final=True), True
        shown = len(text) - self.stops.undecided(text)
        self.held = text[shown:]
        return self._decoder.decode(text[:shown]), False

    def finish(self) -> str:
        """What was held back, after the last byte has come."""
        text = self._decoder.decode(self.held, final=True)
        self.held = b""
        return text


def check_bytes(piece: object) -> bytes:
    """Refuse what is not bytes from a user's `decode`."""
    if not isinstance(piece, bytes):
        raise TypeError(
            f"decode must turn tokens into bytes, got {type(piece).__name__}; "
            "for a tokeniser that gives text, pass lambda ids: tokeniser.decode(ids).encode()"
        )
    return piece


def as_stop_strings(strings: str | Sequence[str]) -> StopStrings:
    """One string or several, as a user gives them."""
    return StopStrings((strings,) if isinstance(strings, str) else tuple(strings))
