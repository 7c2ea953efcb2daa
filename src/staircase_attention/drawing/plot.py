"""A picture on disk, as SVG or PNG."""

import io
import os
import tempfile
from pathlib import Path
from typing import Any

from staircase_attention.drawing.picture import Picture

ENDINGS = (".svg", ".png")
"""The kinds of file that can be written."""
DOTS_PER_INCH = 200
"""The resolution of a PNG."""
MOST_DOTS = 4000
"""The longer side of a PNG, at most; a larger picture gets a lower resolution."""
SETTINGS: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "hatch.linewidth": 0.6,
    # Text stays text, so that it can be searched, selected and read aloud.
    "svg.fonttype": "none",
    # The same picture gives the same file.
    "svg.hashsalt": "staircase",
}


def save_picture(picture: Picture, path: str | os.PathLike[str]) -> None:
    """Write a picture to a file that ends in .svg or .png, whole or not at all."""
    target = Path(path)
    _check(target)
    content = _encode(picture, target.suffix.lower().removeprefix("."))
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}.") as folder:
        scratch = Path(folder) / target.name
        scratch.write_bytes(content)
        scratch.replace(target)


def _check(target: Path) -> None:
    if target.suffix.lower() not in ENDINGS:
        raise ValueError(
            f"a picture is saved as {' or '.join(ENDINGS)}, got {str(target)!r}; "
            f"name it for example {target.stem or 'picture'}.svg"
        )
    if target.is_dir():
        raise ValueError(
            f"a picture is saved as a file, got the folder {str(target)!r}; name a file in it"
        )
    if not target.parent.is_dir():
        raise ValueError(
            f"the folder of a picture must exist, got {str(target.parent)!r}; "
            "create it, or name another"
        )


def _encode(picture: Picture, ending: str) -> bytes:
    """The whole content of the file; the settings hold for this one drawing only."""
    # Most commands draw nothing, and need not wait for matplotlib.
    import matplotlib

    from staircase_attention.drawing.figure import draw_figure

    metadata = {
        "svg": {"Title": picture.title, "Description": picture.caption, "Date": None},
        "png": {"Title": picture.title, "Description": picture.caption},
    }[ending]
    content = io.BytesIO()
    with matplotlib.rc_context(SETTINGS):
        figure = draw_figure(picture)
        longer_side = max(figure.get_size_inches())
        resolution = min(DOTS_PER_INCH, MOST_DOTS / longer_side)
        figure.savefig(content, format=ending, dpi=resolution, metadata=metadata)
    return content.getvalue()
