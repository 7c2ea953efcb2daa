"""Parquet: one document a row, the text in one column."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from staircase_attention.checks import input_error
from staircase_attention.data.checks import optional_module
from staircase_attention.data.document import Document
from staircase_attention.data.readers.json_lines import flattened
from staircase_attention.data.readers.reader import Place

BATCH_ROWS = 64
"""Rows taken at once."""
BUFFER_BYTES = 1 << 20
"""Bytes of a column read at once, so that a large group of rows is never held whole."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Parquet:
    """One document a row; the column holds strings, or lists as JsonLines has them."""

    text_field: str = "text"
    """The name of the column."""
    skipped_name: str = "rows without text"

    def check(self, path: Path) -> None:
        """See that the column is there."""
        self._open(path).close()

    def read(self, path: Path, place: Place) -> Iterator[tuple[Document, Place]]:
        """The rows from a place on; one without text gives an empty document."""
        with self._open(path) as file:
            num_rows, num_bytes = file.metadata.num_rows, path.stat().st_size
            record, num_skipped = place.record, place.num_skipped
            for value in self._values(file, place.record):
                record += 1
                text = _text(value)
                num_skipped += text is None
                after = Place(
                    record=record,
                    num_read=num_bytes * record // num_rows,
                    num_skipped=num_skipped,
                )
                yield Document(text=text or ""), after

    def _open(self, path: Path) -> Any:  # noqa: ANN401
        module = optional_module("pyarrow.parquet", needed_for="a .parquet file")
        try:
            file = module.ParquetFile(path, buffer_size=BUFFER_BYTES, pre_buffer=False)
        except (OSError, ValueError) as error:
            rule, received = "a .parquet file must be whole", f"{path} ({error})"
            raise input_error(rule, received, "fetch it again, or leave it out") from error
        if self.text_field not in file.schema_arrow.names:
            file.close()
            rule = f"the text must be in the column {self.text_field!r} of {path}"
            received = ", ".join(map(repr, file.schema_arrow.names))
            raise input_error(rule, received, "name its column with text_field")
        return file

    def _values(self, file: Any, first: int) -> Iterator[Any]:  # noqa: ANN401
        """The column from row `first` on; groups of rows before it are not read."""
        for group in range(file.num_row_groups):
            num_rows = file.metadata.row_group(group).num_rows
            if first < num_rows:
                yield from self._group_values(file, group, first)
            first = max(0, first - num_rows)

    def _group_values(self, file: Any, group: int, first: int) -> Iterator[Any]:  # noqa: ANN401
        batches = file.iter_batches(BATCH_ROWS, row_groups=[group], columns=[self.text_field])
        for batch in batches:
            column = batch.column(0)
            yield from column.slice(first).to_pylist() if first < len(column) else ()
            first = max(0, first - len(column))


def _text(value: object) -> str | None:
    try:
        return flattened(value)
    except TypeError:
        return None
