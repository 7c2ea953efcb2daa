"""Byte-level BPE learnt from the corpus that it is for."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tokenizers import models, pre_tokenizers, trainers

from staircase_attention.checks import check_integer, input_error
from staircase_attention.data.pieces import LONGEST_PIECE, pieces
from staircase_attention.data.tokenisers.byte_pair import BytePairTokeniser
from staircase_attention.data.tokenisers.byte_tokeniser import NUM_BYTES
from staircase_attention.data.tokenisers.files import END_NAME, byte_level

MOST_WORD_BYTES = 4_000_000
"""The library holds every different word while it learns, at a hundred bytes for each of its own.
32 MB of novels, encyclopaedia and dialogues have 1,400,000 bytes of them."""
LONGEST_WORD = 1_000
"""Bytes of a word that is learnt from: the time for one grows with the square of its length."""
MOST_SYMBOLS = 1_000_000
"""The library makes room for all symbols before it learns the first, and ends the process where
there is none."""
# About how GPT-2 splits words; a byte that is not ASCII is taken for a letter.
WORDS = re.compile(rb" ?[A-Za-z\x80-\xff]+| ?[0-9]+| ?[^\sA-Za-z0-9\x80-\xff]+|\s+")


@dataclass(frozen=True, kw_only=True, slots=True)
class BytePairTraining:
    """A tokeniser that is still to be learnt.

    Bytes come first, then merges in the order in which they were learnt, the end symbol last.
    The same corpus always gives the same tokeniser.
    """

    vocab_size: int = 8_008
    """Symbols in all: 256 bytes, merges, the end symbol. 8,008 is what the paper's models for
    Reddit and BASE have. A corpus may be too small for so many; then there are fewer."""
    sample_bytes: int = 32_000_000
    """How much text is learnt from: training documents, spread evenly over the corpus. It ends
    sooner if there are very many different words, more than prose has: see MOST_WORD_BYTES."""

    def __post_init__(self) -> None:
        """Refuse what has no room for the bytes."""
        check_vocab_size(self.vocab_size)
        check_integer("sample_bytes", self.sample_bytes, minimum=1, example=32_000_000)


def evenly_sampled(texts: Iterable[tuple[bytes, float]], num_bytes: int) -> Iterator[bytes]:
    """Texts of about so many bytes in all, spread evenly.

    Args:
        texts: each with the share of the whole that has been read when it comes, from 0 to 1.
        num_bytes: how much to take; a text is taken whenever less has been taken than would be
            even.
    """
    num_taken = 0
    for text, share in texts:
        if num_taken < share * num_bytes:
            num_taken += len(text)
            yield text


def with_bounded_words(texts: Iterable[bytes]) -> Iterator[bytes]:
    """Pieces of texts without endless words, until all words together have MOST_WORD_BYTES."""
    seen: set[bytes] = set()
    num_bytes = 0
    for piece in (piece for text in texts for piece in pieces(text, LONGEST_PIECE // 2)):
        words = WORDS.findall(piece)
        if any(len(word) > LONGEST_WORD for word in words):
            words = [word for word in words if len(word) <= LONGEST_WORD]
            piece = b"".join(words)
        new = set(words) - seen
        seen |= new
        num_bytes += sum(map(len, new))
        if num_bytes > MOST_WORD_BYTES:
            return
        yield piece


def train_bpe(texts: Iterable[bytes], *, vocab_size: int = 8_008) -> BytePairTokeniser:
    """Learn a tokeniser from texts; bytes in them that are not UTF-8 are not learnt from."""
    check_vocab_size(vocab_size)
    tokenizer = byte_level(models.BPE())
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - 1,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
        special_tokens=[],
    )
    bounded = with_bounded_words(texts)
    tokenizer.train_from_iterator((text.decode(errors="ignore") for text in bounded), trainer)
    end_symbol = tokenizer.get_vocab_size()
    tokenizer.add_special_tokens([END_NAME])
    return BytePairTokeniser(tokenizer, end_symbol=end_symbol)


def check_vocab_size(vocab_size: int) -> None:
    """Refuse what has no room for the bytes and the end symbol, and what needs too much room."""
    check_integer("vocab_size", vocab_size, minimum=NUM_BYTES + 1, example=8_008)
    if vocab_size > MOST_SYMBOLS:
        rule = f"vocab_size must be at most {MOST_SYMBOLS:,}"
        raise input_error(rule, f"{vocab_size:,}", "use for example vocab_size=8008")
