"""Text as numbers: bytes, byte-level BPE, and any tokenizer.json."""

from pathlib import Path

from staircase_attention.data.tokenisers.byte_pair import BytePairTokeniser
from staircase_attention.data.tokenisers.byte_tokeniser import ByteTokeniser
from staircase_attention.data.tokenisers.files import (
    from_tokenizer_json,
    from_vocabulary_and_merges,
    load_tokeniser,
    tokeniser_from,
)
from staircase_attention.data.tokenisers.protocol import Tokeniser, Tokens
from staircase_attention.data.tokenisers.training import (
    BytePairTraining,
    evenly_sampled,
    train_bpe,
)

__all__ = [
    "BytePairTokeniser",
    "BytePairTraining",
    "ByteTokeniser",
    "Tokeniser",
    "Tokens",
    "evenly_sampled",
    "from_tokenizer_json",
    "from_vocabulary_and_merges",
    "load_tokeniser",
    "named_tokeniser",
    "tokeniser_from",
    "train_bpe",
]


def named_tokeniser(name: str) -> Tokeniser | BytePairTraining:
    """The tokeniser that a word on a command line stands for.

    'bytes'; 'bpe' or 'bpe-8008' for one that is learnt from the corpus, of so many symbols; or the
    path of a tokenizer.json, of a folder with GPT-2's encoder.json and vocab.bpe, or of a
    corpus's folder `tokeniser`.

    >>> named_tokeniser("bpe-500")
    BytePairTraining(vocab_size=500, sample_bytes=32000000)
    """
    if name == "bytes":
        return ByteTokeniser()
    kind, _, number = name.partition("-")
    if kind == "bpe" and (number.isdecimal() or name == "bpe"):
        return BytePairTraining(vocab_size=int(number)) if number else BytePairTraining()
    return tokeniser_from(Path(name))
