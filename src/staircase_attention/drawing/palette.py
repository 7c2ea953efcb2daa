"""Colours that both renderers share: told apart by lightness alone, so safe for any eye or printer.

The scale is ColorBrewer's YlGnBu without its ends; lightness falls with every pass.
"""

Colour = tuple[int, int, int]
"""Red, green and blue, 0 to 255."""

SCALE: tuple[Colour, ...] = (
    (199, 233, 180),
    (127, 205, 187),
    (65, 182, 196),
    (29, 145, 192),
    (34, 94, 168),
    (37, 52, 148),
)
BLACK: Colour = (0, 0, 0)
WHITE: Colour = (255, 255, 255)


def pass_colour(pass_number: int, num_passes: int) -> Colour:
    """The colour of a query on this pass: light for the first, dark for the last.

    >>> pass_colour(1, 3), pass_colour(3, 3)
    ((199, 233, 180), (37, 52, 148))
    """
    depth = (pass_number - 1) / max(num_passes - 1, 1) * (len(SCALE) - 1)
    below = min(int(depth), len(SCALE) - 2)
    share = depth - below
    red, green, blue = (
        round(low + share * (high - low))
        for low, high in zip(SCALE[below], SCALE[below + 1], strict=True)
    )
    return red, green, blue


def ink_on(colour: Colour) -> Colour:
    """Black or white, whichever reads better on this colour."""
    return max((BLACK, WHITE), key=lambda ink: contrast(ink, colour))


def contrast(one: Colour, other: Colour) -> float:
    """The contrast ratio of two colours, 1 to 21, by the Web Content Accessibility Guidelines."""
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def luminance(colour: Colour) -> float:
    """Relative luminance, 0 for black and 1 for white.

    >>> luminance((255, 255, 255))
    1.0
    """
    red, green, blue = (_linear(part / 255) for part in colour)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _linear(part: float) -> float:
    """One channel of sRGB without its gamma."""
    return part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4  # noqa: PLR2004


def hexadecimal(colour: Colour) -> str:
    """The colour as the web writes it.

    >>> hexadecimal((37, 52, 148))
    '#253494'
    """
    return "#{:02x}{:02x}{:02x}".format(*colour)
