"""Text as corpora: preparing files of any size once, and reading tokens from mapped memory.

The way of the data: a `Source` gives `Document`s; a `Mixture` of sources says how often each comes
and in which split; a `Tokeniser` turns them into tokens; `prepare` writes them down as a `Corpus`,
shards with a manifest. `TokenLanes` deals a split of it into batches for training,
`evaluation_batches` for the rest.
"""

from staircase_attention.batches import IGNORED
from staircase_attention.checks import InputError
from staircase_attention.data.corpus import Corpus
from staircase_attention.data.document import Cursor, Document, Source
from staircase_attention.data.enwik8 import prepare_enwik8
from staircase_attention.data.manifest import Manifest
from staircase_attention.data.mixture import Part
from staircase_attention.data.preparing import Storing, prepare
from staircase_attention.data.progress import Lines, Progress, Silent
from staircase_attention.data.readers import ReadingOptions
from staircase_attention.data.splits import HeldOut
from staircase_attention.data.text import prepare_text
from staircase_attention.data.text_source import TextSource
from staircase_attention.data.token_lanes import (
    TokenLanes,
    TokenPosition,
    evaluation_batches,
)
from staircase_attention.data.token_split import TokenSplit
from staircase_attention.data.tokenisers import (
    BytePairTokeniser,
    BytePairTraining,
    ByteTokeniser,
    Tokeniser,
    load_tokeniser,
    named_tokeniser,
    train_bpe,
)

__all__ = [
    "IGNORED",
    "BytePairTokeniser",
    "BytePairTraining",
    "ByteTokeniser",
    "Corpus",
    "Cursor",
    "Document",
    "HeldOut",
    "InputError",
    "Lines",
    "Manifest",
    "Part",
    "Progress",
    "ReadingOptions",
    "Silent",
    "Source",
    "Storing",
    "TextSource",
    "TokenLanes",
    "TokenPosition",
    "TokenSplit",
    "Tokeniser",
    "evaluation_batches",
    "load_tokeniser",
    "named_tokeniser",
    "prepare",
    "prepare_enwik8",
    "prepare_text",
    "train_bpe",
]
