"""Files of many kinds as documents; each kind of file has a reader."""

from staircase_attention.data.readers.choice import (
    FoundFiles,
    ReadingOptions,
    find_files,
    reader_of,
)
from staircase_attention.data.readers.compression import Stream
from staircase_attention.data.readers.reader import Place, Reader

__all__ = ["FoundFiles", "Place", "Reader", "ReadingOptions", "Stream", "find_files", "reader_of"]
