"""Byte-level BPE learnt from the corpus that it is for."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tokenizers import models, pre_tokenizers, trainers

from staircase_attention.data.checks import check_whole_number
from staircase_attention.data.tokenisers.byte_pair import BytePairTokeniser
from staircase_attention.data.tokenisers.byte_tokeniser import NUM_BYTES
from staircase_attention.data.tokenisers.files import END_NAME, byte_level


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
    """How much text is learnt from: training documents, spread evenly over the corpus."""

    def __post_init__(self) -> None:
        """Refuse what has no room for the bytes."""
        check_vocab_size(self.vocab_size)
        check_whole_number("sample_bytes", self.sample_bytes, minimum=1, example=32_000_000)


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
    tokenizer.train_from_iterator((text.decode(errors="ignore") for text in texts), trainer)
    end_symbol = tokenizer.get_vocab_size()
    tokenizer.add_special_tokens([END_NAME])
    return BytePairTokeniser(tokenizer, end_symbol=end_symbol)


def check_vocab_size(vocab_size: int) -> None:
    """Refuse what has no room for the bytes and the end symbol."""
    check_whole_number("vocab_size", vocab_size, minimum=NUM_BYTES + 1, example=8_008)
