"""Tokenisers as Transformers keeps them.

They encode as our own training does: nothing is added, padded or cut off, and a text that spells
out the name of a special symbol is still only a text.
"""

import os
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from staircase_attention.huggingface.config import StaircaseConfig

NUM_BYTES = 256
END_NAME = "<|endoftext|>"
"""What an end symbol is called that has no name yet."""


def byte_tokenizer(*, has_end_symbol: bool = False) -> Tokenizer:
    """A tokeniser whose symbols are bytes, and their ids the bytes' values; the end is 256.

    Bytes that are no UTF-8, of which a model can make any, come out as U+FFFD.

    >>> byte_tokenizer().encode("é!").ids
    [195, 169, 33]
    """
    vocab = {name: value for value, name in enumerate(names_of_bytes())}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    if has_end_symbol:
        tokenizer.add_special_tokens([END_NAME])
    return tokenizer


def names_of_bytes() -> list[str]:
    """The character that stands for each byte in a tokeniser's file.

    A byte whose Latin-1 character can be seen is that character; the others take the code points
    from 256 on.
    """
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, NUM_BYTES)}
    unseen = [value for value in range(NUM_BYTES) if value not in visible]
    stand_ins = {value: NUM_BYTES + place for place, value in enumerate(unseen)}
    return [chr(stand_ins.get(value, value)) for value in range(NUM_BYTES)]


def find_tokenizer(
    given: Tokenizer | str | os.PathLike[str] | None, vocab_size: int
) -> Tokenizer | None:
    """The tokeniser that is meant: the one given, the one in a file, or bytes by their number."""
    if given is None:
        num_more = vocab_size - NUM_BYTES
        return byte_tokenizer(has_end_symbol=num_more == 1) if num_more in (0, 1) else None
    # What follows changes it, and it may be in use elsewhere.
    tokenizer = (
        Tokenizer.from_str(given.to_str())
        if isinstance(given, Tokenizer)
        else read_tokenizer(given)
    )
    highest = max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)
    if highest >= vocab_size:
        raise ValueError(
            f"a tokeniser must give ids under the model's vocab_size = {vocab_size}, "
            f"got one with ids up to {highest}; take the one that the model was trained with"
        )
    tokenizer.no_padding()
    tokenizer.no_truncation()
    tokenizer.post_processor = None
    return tokenizer


def read_tokenizer(path: str | os.PathLike[str]) -> Tokenizer:
    """A tokeniser from its JSON file."""
    if not Path(path).is_file():
        raise FileNotFoundError(
            f"a tokeniser is read from a JSON file, got {os.fspath(path)}, which is none; "
            "check the path"
        )
    try:
        return Tokenizer.from_file(os.fspath(path))
    # The library raises nothing more exact.
    except Exception as error:
        raise ValueError(
            f"a tokeniser is read from a file that Tokenizer.save wrote, got {os.fspath(path)} "
            f"({error}); save it again"
        ) from error


def for_transformers(tokenizer: Tokenizer, config: StaircaseConfig) -> PreTrainedTokenizerFast:
    """The tokeniser as Transformers calls it, with the special symbols of the config."""
    ids = {
        "bos_token": config.bos_token_id,
        "eos_token": config.eos_token_id,
        "pad_token": config.pad_token_id,
    }
    special = {
        role: AddedToken(name_of(number, tokenizer), normalized=False, special=True)
        for role, number in ids.items()
        if isinstance(number, int)
    }
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer,
        # Generation goes on at a row's end, so padding comes before its beginning.
        padding_side="left",
        model_input_names=["input_ids", "attention_mask"],
        clean_up_tokenization_spaces=False,
        split_special_tokens=True,
        **special,
    )


def name_of(number: int, tokenizer: Tokenizer) -> str:
    """What a special symbol is called; the one after all others may get its name here."""
    name = tokenizer.id_to_token(number)
    if name is None:
        name = END_NAME
        tokenizer.add_special_tokens([name])
        if tokenizer.token_to_id(name) != number:
            raise ValueError(
                "a special symbol must be one of the tokeniser's ids or the one after them, "
                f"got {number}; name another"
            )
    return name
