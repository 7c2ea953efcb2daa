"""What can be said of a tokeniser by looking at its plan, or by trying it."""

import itertools
from collections.abc import Mapping
from typing import Any

from tokenizers import Tokenizer

from staircase_attention.data.pieces import END_OF_LINE, LETTER
from staircase_attention.data.tokenisers.byte_alphabet import bytes_of, character_of_byte

Plan = Mapping[str, Any]
"""A tokenizer.json, read."""

TRIAL = (
    "The quick  brown fox, aged 1,234 years, jumps over\n\n the lazy dog's \tback: isn't it "
    "naïve?  Voilà une idée of it (Ещё одна мысль and 一个主意 too)...\n  \r\n"
    "<p class='x'>Yes</p> \n"
)
"""A text with many ends of words and lines."""


def is_lossless(plan: Plan) -> bool:
    """Whether every text comes back from its tokens, by the parts that the tokeniser is made of.

    It is certain for BPE over the byte alphabet, all 256 characters of it, if nothing changes the
    text before. That another kind is lossless too is not ruled out, only not known.
    """
    return (
        not _steps(plan["normalizer"], "normalizers")
        and _only_divides(_steps(plan["pre_tokenizer"], "pretokenizers"))
        and _is_plain_bpe(plan["model"])
        and all(_is_harmless(token, plan["model"]["vocab"]) for token in plan["added_tokens"])
    )


def _steps(part: Plan | None, name: str) -> list[Plan]:
    """A sequence of steps as a list, however it is nested."""
    if part is None:
        return []
    if part["type"] != "Sequence":
        return [part]
    return list(itertools.chain.from_iterable(_steps(step, name) for step in part[name]))


def _only_divides(steps: list[Plan]) -> bool:
    """Whether words are cut out without a change, and then written in the byte alphabet."""
    *divisions, last = steps or [{"type": "none"}]
    return (
        last["type"] == "ByteLevel"
        and not last["add_prefix_space"]
        and all(
            step["type"] in ("Split", "Punctuation", "Digits") and step.get("behavior") != "Removed"
            for step in divisions
        )
    )


def _is_plain_bpe(model: Plan) -> bool:
    return (
        model["type"] == "BPE"
        and not model.get("continuing_subword_prefix")
        and not model.get("end_of_word_suffix")
        and all(character in model["vocab"] for character in character_of_byte().values())
    )


def _is_harmless(token: Plan, vocabulary: Mapping[str, int]) -> bool:
    """Whether a token that was added says what it stands for, and swallows nothing around it."""
    if token["special"]:
        return True
    content: str = token["content"]
    means_one_thing = content not in vocabulary or bytes_of(content) == content.encode()
    return means_one_thing and not (token["lstrip"] or token["rstrip"])


def may_be_cut(tokenizer: Tokenizer) -> bool:
    """Whether a text may be cut at the ends of words and lines, as a trial shows."""
    data = TRIAL.encode()

    def encoded(part: bytes) -> list[int]:
        tokens: list[int] = tokenizer.encode(part.decode(), add_special_tokens=False).ids
        return tokens

    whole = encoded(data)
    cuts = [found.end() for pattern in (LETTER, END_OF_LINE) for found in pattern.finditer(data)]
    return all(encoded(data[:cut]) + encoded(data[cut:]) == whole for cut in cuts)
