"""Text as token numbers: bytes as tokens, byte-level BPE, and any tokenizer.json, by name or file.

Byte-level tokenisers write each byte as one printable character, as GPT-2 introduced: a printable
byte of Latin-1 is itself, and the other 68 are the characters from U+0100 on, in order.
"""

import array
import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from staircase_attention.checks import check_fields, check_integer, input_error
from staircase_attention.data.documents import pieces
from staircase_attention.files import as_written, parse_json, read_file, write_json
from staircase_attention.plain import convert

# The library takes long to import, and most users of this package do not need it.
if TYPE_CHECKING:
    from tokenizers import Tokenizer, models

# Token numbers, of any width.
Tokens = NDArray[np.unsignedinteger[Any]]
NUM_BYTES = 256
# The file that names the kind of tokeniser in a folder.
SETTINGS = "settings.json"
# A tokeniser as the `tokenizers` library writes it.
TOKENIZER_FILE = "tokenizer.json"
# The two pairs of names of GPT-2's files.
VOCABULARY_AND_MERGES = (("encoder.json", "vocab.bpe"), ("vocab.json", "merges.txt"))
# The library allocates all symbols before it learns the first, and aborts if it cannot.
MOST_SYMBOLS = 1_000_000
# Brackets that may be nested in a tokenizer.json; the library's time is exponential in them.
DEEPEST = 12
KINDS = {"BPE": "byte-pair", "Unigram": "unigram", "WordPiece": "word-piece", "WordLevel": "words"}
END_NAME = "<|endoftext|>"
# Names of the end of a text in well-known tokenisers, the likeliest first.
KNOWN_ENDS = (END_NAME, "<|end_of_text|>", "</s>", "<eos>", "<|eot_id|>", "[SEP]")
# Bytes that are not UTF-8, as Python escapes them.
STRAY_BYTES = re.compile("([\udc80-\udcff]+)")
# While it learns, the library holds every distinct word, in a hundred bytes per byte of it.
# 32 MB of novels, encyclopaedia and dialogues have 1,400,000 bytes of distinct words.
MOST_WORD_BYTES = 4_000_000
# Bytes of a word to learn from: the time grows with the square of its length.
LONGEST_WORD = 1_000
# Roughly how GPT-2 splits words; a byte that is not ASCII counts as a letter.
WORDS = re.compile(rb" ?[A-Za-z\x80-\xff]+| ?[0-9]+| ?[^\sA-Za-z0-9\x80-\xff]+|\s+")

_PRINTABLE = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
_OTHERS = (byte for byte in range(NUM_BYTES) if byte not in _PRINTABLE)
BYTE_OF_CHARACTER = {chr(byte): byte for byte in _PRINTABLE} | {
    chr(0x100 + number): byte for number, byte in enumerate(_OTHERS)
}
# A parsed tokenizer.json.
Plan = Mapping[str, Any]


class ByteTokeniser:
    """A token is a byte; the end symbol, if there is one, is 256.

    >>> tokeniser = ByteTokeniser()
    >>> tokeniser.encode_batch([b"Hi"])[0].tolist(), tokeniser.vocab_size
    ([72, 105], 257)
    """

    def __init__(self, *, has_end_symbol: bool = True) -> None:
        """Args: has_end_symbol: whether one ends each document; Enwik8 is one text without."""
        self.name = "bytes"
        self.vocab_size = NUM_BYTES + has_end_symbol
        self.end_symbol: int | None = NUM_BYTES if has_end_symbol else None
        self.is_lossless = True

    def encode_batch(self, texts: Sequence[bytes]) -> list[Tokens]:
        """Views of the texts."""
        return [np.frombuffer(text, dtype=np.uint8) for text in texts]

    def decode(self, tokens: Tokens) -> bytes:
        """The bytes, without end symbols."""
        return tokens[tokens < NUM_BYTES].astype(np.uint8).tobytes()

    def save(self, folder: Path) -> None:
        """Write the settings."""
        has_end_symbol = self.end_symbol is not None
        write_json(folder / SETTINGS, {"kind": "bytes", "has_end_symbol": has_end_symbol})


@dataclass(frozen=True, kw_only=True, slots=True)
class BytePairTraining:
    """A byte-level BPE tokeniser to be learnt from the corpus.

    Bytes come first, then merges in the order in which they are learnt, the end symbol last.
    The same corpus always gives the same tokeniser.
    """

    vocab_size: int = field(
        default=8_008, metadata={"minimum": NUM_BYTES + 1, "maximum": MOST_SYMBOLS}
    )
    """Symbols in all: 256 bytes, merges, the end symbol. The paper's models of Reddit and BASE
    have 8,008. A small corpus may give fewer."""
    sample_bytes: int = 32_000_000
    """Text to learn from: training documents, spread evenly over the corpus. Less is used where
    there are more distinct words than prose has (see MOST_WORD_BYTES)."""

    def __post_init__(self) -> None:
        check_fields(self)


class BytePairTokeniser:
    """A tokeniser of the `tokenizers` library, with an end symbol.

    Special tokens are not recognised in text: a document that contains "<|endoftext|>" is encoded
    letter by letter, and an end symbol is always the end of a document. Nothing is added, padded
    or truncated.

    Text that is not UTF-8: a byte-level tokeniser encodes each stray byte as that byte's own
    token, so that it is lossless for all bytes. Any other tokeniser gets U+FFFD instead.
    """

    def __init__(self, tokenizer: "Tokenizer", *, end_symbol: int) -> None:
        """Take over a tokenizer; this changes its settings.

        The end symbol, the token after every document, may be a new number after all tokens.
        """
        self._tokenizer = tokenizer
        tokenizer.no_padding()
        tokenizer.no_truncation()
        tokenizer.encode_special_tokens = True
        self._vocabulary = tokenizer.get_vocab(with_added_tokens=True)
        plan = json.loads(tokenizer.to_str())
        self.end_symbol: int | None = end_symbol
        self.vocab_size = max(*self._vocabulary.values(), end_symbol) + 1
        name, most = "the size of a vocabulary", MOST_SYMBOLS
        check_integer(name, self.vocab_size, minimum=1, maximum=most, example=8_008)
        self.name = f"{KINDS.get(plan['model']['type'], 'other')}-{self.vocab_size}"
        self.is_lossless = _is_lossless(plan)

    def encode_batch(self, texts: Sequence[bytes]) -> list[Tokens]:
        """The tokens of each text; the library's threads share the work."""
        if not self.is_lossless:
            found = self._encode([text.decode(errors="replace") for text in texts])
            # Some vocabularies have the end symbol among their words too.
            return [tokens[tokens != self.end_symbol] for tokens in found]
        # Every second part of a text is a run of stray bytes; nearly all texts have one part.
        divided = [STRAY_BYTES.split(text.decode(errors="surrogateescape")) for text in texts]
        readable = iter(self._encode([part for parts in divided for part in parts[::2]]))
        encoded = []
        for parts in divided:
            tokens = [next(readable)]
            for stray in parts[1::2]:
                numbers = list(stray.encode(errors="surrogateescape"))
                tokens += [self._tokens_of_bytes[numbers], next(readable)]
            encoded.append(np.concatenate(tokens))
        return encoded

    def decode(self, tokens: Tokens) -> bytes:
        """The text of some tokens; numbers that the vocabulary leaves out have none."""
        kept = tokens[tokens != self.end_symbol].tolist()
        if self.is_lossless:
            return b"".join(self._bytes_of_token.get(number, b"") for number in kept)
        return self._tokenizer.decode(kept, skip_special_tokens=False).encode()

    def save(self, folder: Path) -> None:
        """Write the tokenizer.json, which other programs can read, and the settings."""
        write_json(folder / SETTINGS, {"kind": "tokenizers", "end_symbol": self.end_symbol})
        (folder / TOKENIZER_FILE).write_text(self._tokenizer.to_str(pretty=True))

    def _encode(self, texts: Sequence[str]) -> list[Tokens]:
        with reading("a tokeniser must encode every text", self.name, "use another"):
            encodings = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        # By way of `array` this takes half the time of np.array.
        return [np.frombuffer(array.array("I", one.ids), dtype=np.uint32) for one in encodings]

    @cached_property
    def _bytes_of_token(self) -> dict[int, bytes]:
        added = self._tokenizer.get_added_tokens_decoder()
        meanings = {number: bytes_of(token) for token, number in self._vocabulary.items()}
        # An added token is matched in the text itself, not in the byte alphabet.
        return meanings | {number: token.content.encode() for number, token in added.items()}

    @cached_property
    def _tokens_of_bytes(self) -> NDArray[np.uint32]:
        tokens = np.empty(NUM_BYTES, dtype=np.uint32)
        for character, byte in BYTE_OF_CHARACTER.items():
            tokens[byte] = self._vocabulary[character]
        return tokens


Tokeniser: TypeAlias = ByteTokeniser | BytePairTokeniser
"""Turns text into token numbers and back. Every token is below `vocab_size`. The end symbol follows
every document, and no text is encoded to it; it is None if there is none. `is_lossless`: whether
decode(encode(x)) == x is certain for all bytes, UTF-8 or not."""


def bytes_of(token: str) -> bytes:
    """The bytes of a token; a token outside the byte alphabet stands for itself.

    >>> bytes_of("Ġdog"), bytes_of("<| end |>")
    (b' dog', b'<| end |>')
    """
    try:
        return bytes(BYTE_OF_CHARACTER[character] for character in token)
    except KeyError:
        return token.encode()


def _is_lossless(plan: Plan) -> bool:
    """Whether every text can be restored from its tokens, judged by the tokeniser's parts.

    It is certain for BPE over all 256 characters of the byte alphabet if earlier steps only divide
    the text. Another tokeniser may be lossless too, but this is not known.
    """
    model = plan["model"]
    *divisions, last = _steps(plan["pre_tokenizer"], "pretokenizers") or [{"type": None}]
    return (
        not _steps(plan["normalizer"], "normalizers")
        and all(step["type"] in ("Split", "Punctuation", "Digits") for step in divisions)
        and all(step.get("behavior") != "Removed" for step in divisions)
        and last["type"] == "ByteLevel"
        and not last["add_prefix_space"]
        and model["type"] == "BPE"
        and not model.get("continuing_subword_prefix")
        and not model.get("end_of_word_suffix")
        and model["vocab"].keys() >= BYTE_OF_CHARACTER.keys()
        and all(_is_harmless(token, model["vocab"]) for token in plan["added_tokens"])
    )


def _steps(part: Plan | None, name: str) -> list[Plan]:
    """The steps of a normaliser or a pre-tokeniser as a flat list."""
    if part is None or part["type"] != "Sequence":
        return [] if part is None else [part]
    return [inner for step in part[name] for inner in _steps(step, name)]


def _is_harmless(token: Plan, vocabulary: Mapping[str, int]) -> bool:
    """Whether an added token stands for its own content, and strips nothing around it."""
    if token["special"]:
        return True
    content: str = token["content"]
    is_unambiguous = content not in vocabulary or bytes_of(content) == content.encode()
    return is_unambiguous and not (token["lstrip"] or token["rstrip"])


def from_vocabulary_and_merges(vocabulary: Path, merges: Path) -> BytePairTokeniser:
    """GPT-2's tokeniser, or another in the format of its two files."""
    from tokenizers import models

    rule = "a vocabulary and its merges must be in GPT-2's format"
    with reading(rule, f"{vocabulary} and {merges}", "fetch both files again"):
        _check_plan(parse_json(read_file(vocabulary)))
        assert read_file(merges) is not None  # A regular file, which the library may open.
        model = models.BPE.from_file(str(vocabulary), str(merges))
    tokenizer = byte_level(model)
    tokenizer.add_special_tokens([END_NAME])
    end_symbol = tokenizer.token_to_id(END_NAME)
    assert end_symbol is not None
    return BytePairTokeniser(tokenizer, end_symbol=end_symbol)


def from_tokenizer_json(path: Path) -> BytePairTokeniser:
    """Any tokeniser in the format of Hugging Face's tokenizer.json.

    Documents end with the first of KNOWN_ENDS that it has, or else with a new number after all
    tokens.
    """
    tokenizer = read_tokenizer(path)
    added = tokenizer.get_added_tokens_decoder().items()
    special = {token.content: number for number, token in added if token.special}
    new = max(tokenizer.get_vocab(with_added_tokens=True).values()) + 1
    end_symbol = next((special[name] for name in KNOWN_ENDS if name in special), new)
    return BytePairTokeniser(tokenizer, end_symbol=end_symbol)


def read_tokenizer(path: Path) -> "Tokenizer":
    """The library's own tokeniser in a tokenizer.json."""
    from tokenizers import Tokenizer

    rule = "a tokenizer.json must be in the format of the tokenizers library"
    with reading(rule, str(path), "fetch it again"):
        content = read_file(path)
        _check_plan(parse_json(content))
        return Tokenizer.from_buffer(content)


@contextmanager
def reading(rule: str, received: str, remedy: str) -> Iterator[None]:
    """Report in one line what is wrong with a file that the library reads."""
    try:
        yield
    except BaseException as error:
        # The library raises plain Exception, and panics, which are not even that.
        if isinstance(error, Exception) or type(error).__name__ == "PanicException":
            raise input_error(rule, f"{received} ({error})", remedy) from error
        raise


def _check_plan(plan: Any, depth: int = 0) -> None:  # noqa: ANN401
    """Refuse what the library would take exponential time for, or more memory than there is."""
    if depth > DEEPEST:
        raise ValueError(f"more than {DEEPEST} brackets are nested")
    if isinstance(plan, int) and not -1 <= plan < MOST_SYMBOLS:
        raise ValueError(f"the number {plan}, where {MOST_SYMBOLS:,} symbols are the most")
    if isinstance(plan, dict | list):
        for part in plan.values() if isinstance(plan, dict) else plan:
            _check_plan(part, depth + 1)


def byte_level(model: "models.BPE", *, use_regex: bool = True) -> "Tokenizer":
    """A tokenizer that splits words as GPT-2 does, or not at all, and adds no space in front."""
    from tokenizers import Tokenizer, decoders, pre_tokenizers

    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def train_bpe(texts: Iterable[bytes], *, vocab_size: int = 8_008) -> BytePairTokeniser:
    """Learn a tokeniser from texts; bytes that are not UTF-8 are ignored."""
    from tokenizers import models, pre_tokenizers, trainers

    # Its check is the one for this value, too.
    training = BytePairTraining(vocab_size=vocab_size)
    tokenizer = byte_level(models.BPE())
    trainer = trainers.BpeTrainer(
        vocab_size=training.vocab_size - 1,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
        special_tokens=[],
    )
    bounded = bound_words(texts)
    tokenizer.train_from_iterator((text.decode(errors="ignore") for text in bounded), trainer)
    end_symbol = tokenizer.get_vocab_size()
    tokenizer.add_special_tokens([END_NAME])
    return BytePairTokeniser(tokenizer, end_symbol=end_symbol)


def sample_evenly(texts: Iterable[tuple[bytes, float]], num_bytes: int) -> Iterator[bytes]:
    """Texts of about `num_bytes` in all, spread evenly.

    Args:
        texts: each with the share of the whole, from 0 to 1, that has been read with it.
        num_bytes: the size of the sample; a text is taken whenever the sample is behind.
    """
    num_taken = 0
    for text, share in texts:
        if num_taken < share * num_bytes:
            num_taken += len(text)
            yield text


def bound_words(texts: Iterable[bytes]) -> Iterator[bytes]:
    """Texts in pieces, without overlong words, until distinct words have MOST_WORD_BYTES."""
    seen: set[bytes] = set()
    num_bytes = 0
    for piece, _ in (pair for text in texts for pair in pieces(io.BytesIO(text).read)):
        words = [word for word in WORDS.findall(piece) if len(word) <= LONGEST_WORD]
        new = set(words) - seen
        seen |= new
        num_bytes += sum(map(len, new))
        if num_bytes > MOST_WORD_BYTES:
            return
        yield b"".join(words)


def named_tokeniser(name: str) -> Tokeniser | BytePairTraining:
    """The tokeniser that a command line names.

    'bytes'; 'bpe' or 'bpe-8008' for one of that many symbols, learnt from the corpus; or the path
    of a tokenizer.json, of a folder with GPT-2's encoder.json and vocab.bpe, or of the folder
    `tokeniser` of a corpus.

    >>> named_tokeniser("bpe-500")
    BytePairTraining(vocab_size=500, sample_bytes=32000000)
    """
    if name == "bytes":
        return ByteTokeniser()
    kind, _, number = name.partition("-")
    if kind == "bpe" and (number.isdecimal() or name == "bpe"):
        return BytePairTraining(vocab_size=int(number)) if number else BytePairTraining()
    path = Path(name)
    if path.is_file():
        return from_tokenizer_json(path)
    # A corpus's own tokeniser names its end symbol; in any other it is looked for.
    if (path / SETTINGS).is_file():
        return load_tokeniser(path)
    if (path / TOKENIZER_FILE).is_file():
        return from_tokenizer_json(path / TOKENIZER_FILE)
    for vocabulary, merges in VOCABULARY_AND_MERGES:
        if (path / vocabulary).is_file() and (path / merges).is_file():
            return from_vocabulary_and_merges(path / vocabulary, path / merges)
    rule = f"a tokeniser must be bytes, bpe-N, a {TOKENIZER_FILE}, or a folder of GPT-2's files"
    raise input_error(rule, name, "use for example bpe-8008")


def load_tokeniser(folder: Path) -> Tokeniser:
    """The tokeniser that `save` wrote into a folder."""
    path = folder / SETTINGS
    with as_written(f"a saved tokeniser's {SETTINGS}", path, "prepare the corpus again"):
        settings = parse_json(read_file(path))
        if settings["kind"] == "bytes":
            return ByteTokeniser(has_end_symbol=convert(bool, settings["has_end_symbol"], SETTINGS))
        end_symbol = convert(int, settings["end_symbol"], "end_symbol")
    tokenizer = read_tokenizer(folder / TOKENIZER_FILE)
    return BytePairTokeniser(tokenizer, end_symbol=end_symbol)
