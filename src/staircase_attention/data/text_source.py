"""Files and folders of text, as a source of documents."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from staircase_attention.data.document import Cursor, Document
from staircase_attention.data.readers import Place, Reader, ReadingOptions, find_files


class TextSource:
    r"""One file, or all files of a folder: .txt, .jsonl, .parquet, .tar, compressed or not.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "a.jsonl").write_text('{"text": "One."}\n{"text": "Two."}\n')
    ...     _ = Path(folder, "b.txt").write_text("Three.")
    ...     [document.data for document, _ in TextSource(folder).documents(None)]
    [b'One.', b'Two.', b'Three.']
    """

    def __init__(
        self,
        path: str | Path,
        *,
        options: ReadingOptions | None = None,
        split: str | None = None,
    ) -> None:
        """See what there is to read.

        Args:
            path: a file or a folder.
            options: how texts are taken out of files.
            split: where all of its documents must go; None for a split by their hashes.
        """
        self.path, self.split = Path(path), split
        self.options = options or ReadingOptions()
        found = find_files(self.path, self.options)
        self.others: Sequence[Path] = found.others
        """Files in the folder that are of other kinds."""
        self._files: Sequence[tuple[Path, Reader]] = found.files
        for file, reader in self._files:
            reader.check(file)
        self._sizes = [path.stat().st_size for path, _ in self._files]

    @property
    def name(self) -> str:
        """The path as it was given."""
        return str(self.path)

    @property
    def parameters(self) -> Mapping[str, Any]:
        """The options, and the split if there is one."""
        return asdict(self.options) | {"split": self.split}

    @property
    def files(self) -> Sequence[Path]:
        """In the order in which they are read."""
        return [path for path, _ in self._files]

    @property
    def total_bytes(self) -> int:
        """The size of the files, as stored."""
        return sum(self._sizes)

    def documents(self, cursor: Cursor | None) -> Iterator[tuple[Document, Cursor]]:
        """The documents after a cursor, file by file."""
        first, start, skipped = 0, Place(), dict[str, int]()
        if cursor is not None:
            first = cursor.place["file"]
            start = Place(*cursor.place["in_file"])
            skipped = dict(cursor.skipped)
        num_before = sum(self._sizes[:first])
        for number in range(first, len(self._files)):
            path, reader = self._files[number]
            for document, place in reader.read(path, start):
                if place.num_skipped:
                    key = f"{reader.skipped_name} in {path.name}"
                    skipped = skipped | {key: place.num_skipped}
                if self.split is not None:
                    document = replace(document, split=self.split)
                num_read = num_before + min(place.num_read, self._sizes[number])
                at = {"file": number, "in_file": list(place)}
                yield document, Cursor(place=at, num_read=num_read, skipped=skipped)
            num_before += self._sizes[number]
            start = Place()
