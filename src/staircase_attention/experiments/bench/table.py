"""The report for a reader."""

from rich import box
from rich.table import Table
from rich.text import Text

from staircase_attention.experiments.bench.decoding import DecodingTimes
from staircase_attention.experiments.bench.report import BenchReport, BenchRow, Failure
from staircase_attention.experiments.bench.updates import UpdateTimes

GIBIBYTE = 1 << 30
NONE = "-"
NAME_WIDTH = 30
"""Letters of a name before it goes on in the next line."""
THREE_DIGITS = 100
TWO_DIGITS = 10


def tables(report: BenchReport) -> list[Table]:
    """What was asked for: updates, decoding, or both."""
    found = []
    if any(row.updates is not None for row in report.rows):
        found.append(update_table(report))
    if any(row.decoding for row in report.rows):
        found.append(decoding_table(report))
    return found


def update_table(report: BenchReport) -> Table:
    """A line a subject."""
    has_ratio = any(row.subject.baseline is not None for row in report.rows)
    headings = ["param-\neters", "first\ns", "mean\nms", "median\nms", "tokens\n/s", "of\npeak"]
    headings += ["memory\nGiB"] + (["ratio"] if has_ratio else [])
    grid = _grid("updates", headings)
    for row in report.rows:
        if row.updates is not None:
            cells = _update_cells(report, row) + ([_ratio(report, row)] if has_ratio else [])
            grid.add_row(_name(row.name, row.updates), *cells)
    return grid


def decoding_table(report: BenchReport) -> Table:
    """A line a subject and number of rows."""
    headings = ["batch", "mean\nms", "median\nms", "tokens\n/s", "floor\nms", "times\nfloor"]
    headings += ["memory\nGiB"]
    grid = _grid("decoding", headings)
    for row in report.rows:
        for num_rows, times in row.decoding.items():
            cells = _decoding_cells(report, times)
            grid.add_row(_name(row.name, times), str(num_rows), *cells)
    return grid


def machine_words(report: BenchReport) -> str:
    """The machine, and what a share of peak is a share of."""
    known = report.environment
    words = f"{known['device']}, torch {known['packages'].get('torch', '?')}"
    if isinstance(report.peaks, Failure):
        return f"{words}; peaks: {report.peaks.reason}"
    products = ", ".join(
        f"{name} products of {product.size}³ {rate(product.flops_per_second)}FLOP/s"
        for name, product in report.peaks.products.items()
    )
    return f"{words}; {products}, copies {rate(report.peaks.copy.bytes_per_second)}B/s"


def _grid(what: str, headings: list[str]) -> Table:
    grid = Table(
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    grid.add_column(what, max_width=NAME_WIDTH, overflow="fold")
    for heading in headings:
        grid.add_column(heading, justify="right", no_wrap=True, vertical="top")
    return grid


def _name(name: str, times: object) -> Text:
    """The name, and under it what went wrong or not as fast as it could."""
    text = Text(name)
    if isinstance(times, Failure):
        text.append(f"\n{times.reason}", style="red")
    if isinstance(times, UpdateTimes):
        for remark in times.remarks:
            text.append(f"\n{remark}", style="yellow")
    return text


def _update_cells(report: BenchReport, row: BenchRow) -> list[str]:
    times = row.updates
    if not isinstance(times, UpdateTimes):
        return [NONE] * 7
    share = report.share_of_peak(row)
    return [
        count(times.num_parameters),
        f"{times.first_after:.1f}",
        milliseconds(times.laps.mean),
        milliseconds(times.laps.median),
        f"{times.tokens_per_second:,.0f}",
        NONE if share is None else f"{100 * share:.1f}%",
        f"{times.peak_memory / GIBIBYTE:.2f}",
    ]


def _ratio(report: BenchReport, row: BenchRow) -> str:
    ratio = report.ratio_to_baseline(row)
    return NONE if ratio is None else f"{ratio:.2f}"


def _decoding_cells(report: BenchReport, times: DecodingTimes | Failure) -> list[str]:
    if isinstance(times, Failure):
        return [NONE] * 6
    floor = report.floor(times)
    return [
        milliseconds(times.laps.mean),
        milliseconds(times.laps.median),
        f"{times.tokens_per_second:,.0f}",
        NONE if floor is None else milliseconds(floor),
        NONE if floor is None else f"{times.laps.mean / floor:.1f}",
        f"{times.peak_memory / GIBIBYTE:.2f}",
    ]


def count(number: int) -> str:
    """A number of parameters.

    >>> count(117_123_456), count(28_466), count(12)
    ('117.1M', '28.5k', '12')
    """
    for unit, size in (("M", 10**6), ("k", 10**3)):
        if number >= size:
            return f"{number / size:,.1f}{unit}"
    return str(number)


def rate(number: float) -> str:
    """Something a second, before its unit.

    >>> rate(785.2e12), rate(51.9e9)
    ('785 T', '51.9 G')
    """
    unit, size = ("T", 1e12) if number >= 1e12 else ("G", 1e9)  # noqa: PLR2004
    return f"{number / size:.3g} {unit}"


def milliseconds(seconds: float) -> str:
    """Seconds as milliseconds, in three digits or more.

    >>> milliseconds(1.2345), milliseconds(0.012345), milliseconds(0.0012345)
    ('1,234', '12.3', '1.23')
    """
    value = 1e3 * seconds
    if value >= THREE_DIGITS:
        return f"{value:,.0f}"
    if value >= TWO_DIGITS:
        return f"{value:.1f}"
    return f"{value:.2f}" if value >= 1 else f"{value:.3g}"
