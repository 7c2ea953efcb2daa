"""Text as corpora: files of any size are prepared once, and tokens read from mapped memory.

A `DocumentSource` gives `Document`s. A mixture of sources says how often each comes, and in which
split. A `Tokeniser` turns documents into tokens, and `prepare` stores them as a `Corpus`: shards
with a manifest. `TokenLanes` gives the training batches of a split, `evaluation_batches` the rest.
"""

from staircase_attention.batches import IGNORED
from staircase_attention.checks import InputError
from staircase_attention.data.byte_pair import BytePairTraining, train_bpe
from staircase_attention.data.corpus import Corpus, TokenSplit
from staircase_attention.data.documents import Cursor, Document, DocumentSource, HeldOut
from staircase_attention.data.enwik8 import prepare_enwik8
from staircase_attention.data.jobs import PreparationProgress, ProgressLines
from staircase_attention.data.lanes import TokenLanes, TokenPosition, evaluation_batches
from staircase_attention.data.mixture import Part
from staircase_attention.data.preparation import join, prepare, prepare_text
from staircase_attention.data.readers import ReadingOptions, TextSource
from staircase_attention.data.tokenisers import (
    ByteTokeniser,
    Tokeniser,
    load_tokeniser,
    named_tokeniser,
)

__all__ = [
    "IGNORED",
    "BytePairTraining",
    "ByteTokeniser",
    "Corpus",
    "Cursor",
    "Document",
    "DocumentSource",
    "HeldOut",
    "InputError",
    "Part",
    "PreparationProgress",
    "ProgressLines",
    "ReadingOptions",
    "TextSource",
    "TokenLanes",
    "TokenPosition",
    "TokenSplit",
    "Tokeniser",
    "evaluation_batches",
    "join",
    "load_tokeniser",
    "named_tokeniser",
    "prepare",
    "prepare_enwik8",
    "prepare_text",
    "train_bpe",
]
