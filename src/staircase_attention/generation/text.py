"""Text: tokens decoded as they come, ended by stop strings.

A stop string may start in one token and end inside another. So bytes that may start a stop string
are held back until it is clear that they do not; and the bytes of an incomplete character wait for
the rest of it.
"""

import codecs
from collections.abc import Callable, Sequence

from staircase_attention.checks import input_error

# Text to tokens.
Encode = Callable[[str], Sequence[int]]
# Tokens to bytes. It is called for single tokens: the bytes of several must be the bytes of each,
# concatenated, as in all byte-level tokenisers.
Decode = Callable[[Sequence[int]], bytes]


def show(text: bytes, stops: Sequence[str], *, is_end: bool = False) -> tuple[str, bytes, bool]:
    """What can be shown of these bytes, what is held back, and whether a stop string ended them.

    The stop string that is complete first ends the text; of several that end at the same byte, the
    longest. So the result does not depend on how the bytes are split into tokens. Bytes that are
    not UTF-8, which a model can make, appear as U+FFFD.

    >>> show(b"the E", ["END"]), show(b"East E", ["END"]), show(b"ENDED", ["END"])
    (('the ', b'E', False), ('East ', b'E', False), ('', b'', True))
    """
    encoded = [stop.encode() for stop in stops]
    found = [(text.find(stop) + len(stop), text.find(stop)) for stop in encoded if stop in text]
    if found:
        # Pairs of end and start: the earliest end wins, then the earliest start.
        return text[: min(found)[1]].decode(errors="replace"), b"", True
    if is_end:
        return text.decode(errors="replace"), b"", False
    starts = [size for stop in encoded for size in range(len(stop)) if text.endswith(stop[:size])]
    decided = text[: len(text) - max(starts)] if starts else text
    shown, num_used = codecs.utf_8_decode(decided, "replace", False)
    return shown, text[num_used:], False


def as_stop_strings(strings: str | Sequence[str]) -> tuple[str, ...]:
    """Stop strings, given as one string or several."""
    found = (strings,) if isinstance(strings, str) else tuple(strings)
    if not all(isinstance(one, str) and one for one in found):
        raise input_error(
            "a stop string must be a string of at least one character",
            list(found),
            "leave out the others",
        )
    return found
