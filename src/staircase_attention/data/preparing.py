"""Preparing a corpus, from any sources: checksums, tokeniser, encoding, manifest."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from staircase_attention.checks import InputError, check_integer, input_error
from staircase_attention.data.corpus import Corpus
from staircase_attention.data.corpus_writer import CorpusWriter
from staircase_attention.data.encoding import COMMIT_SECONDS, encode
from staircase_attention.data.manifest import (
    Manifest,
    Preparation,
    SplitRecord,
    TokeniserRecord,
)
from staircase_attention.data.mixture import Mixture, Part
from staircase_attention.data.mixture_place import MixturePlace
from staircase_attention.data.plan import file_checksums, plan
from staircase_attention.data.progress import Progress, Silent
from staircase_attention.data.splits import HeldOut
from staircase_attention.data.tokenisers import (
    BytePairTraining,
    Tokeniser,
    evenly_sampled,
    load_tokeniser,
    train_bpe,
)
from staircase_attention.data.workplace import Workplace
from staircase_attention.files import FULL_DISK

SHARD_TOKENS = 1 << 28
"""Tokens in a file: half a gibibyte, at two bytes each."""
TOLD_BYTES = 1 << 20
"""Bytes read between two words about progress, while a tokeniser is learnt."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Storing:
    """How a preparation goes about its work; nothing that a model sees depends on it."""

    shard_tokens: int = SHARD_TOKENS
    """Tokens in a file at most."""
    commit_seconds: float = COMMIT_SECONDS
    """Between two points from which a killed preparation can go on."""

    def __post_init__(self) -> None:
        """Refuse files without tokens."""
        check_integer("shard_tokens", self.shard_tokens, minimum=1, example=SHARD_TOKENS)


def prepare(
    parts: Sequence[Part],
    folder: str | Path,
    *,
    kind: str,
    tokeniser: Tokeniser | BytePairTraining,
    held_out: HeldOut | None = None,
    splits: Sequence[str] | None = None,
    storing: Storing | None = None,
    progress: Progress | None = None,
) -> Corpus:
    """Turn sources into a corpus; what was killed on the way goes on where it was stopped.

    While it is on its way it lies in `folder` + '.unfinished'; `folder` appears when it is whole.
    An input that is refused leaves nothing behind. If the very same corpus is there already, it is
    opened.

    Args:
        parts: the sources and their weights.
        folder: the corpus to be.
        kind: what the manifest calls it.
        tokeniser: one that there is, or how to learn one from the corpus.
        held_out: how much of what has no split of its own goes to valid and test.
        splits: those that must have tokens; None for train and those that held_out asks for.
        storing: how files are written.
        progress: who is told.
    """
    held_out, storing, progress = held_out or HeldOut(), storing or Storing(), progress or Silent()
    work = Workplace(Path(folder))
    mixture = Mixture(parts=parts, held_out=held_out)
    with work.locked():
        preparation = plan(work, mixture, kind, tokeniser, shard_tokens=storing.shard_tokens)
        if work.is_done(preparation):
            progress.say(f"{folder} is already there")
            return Corpus.open(folder)
        work.claim(preparation)
        try:
            known = _tokeniser(work, tokeniser, mixture, progress)
            manifest = _encode(work, mixture, preparation, known, storing, progress)
            _check_splits(manifest, splits or held_out.names)
        except InputError:
            work.discard()
            raise
        except OSError as error:
            if error.errno not in FULL_DISK:
                raise
            raise OSError(
                f"a corpus needs room on its disk, got none at {folder} ({error.strerror}); "
                "free some room and run this again: it goes on where it was stopped"
            ) from error
        work.finish(manifest)
    return Corpus.open(folder)


def _tokeniser(
    work: Workplace, wanted: Tokeniser | BytePairTraining, mixture: Mixture, progress: Progress
) -> Tokeniser:
    """The tokeniser, learnt if need be, and kept in the folder."""
    if work.tokeniser_folder.exists():
        return load_tokeniser(work.tokeniser_folder)
    if isinstance(wanted, BytePairTraining):
        wanted = _learnt(wanted, mixture, progress)
    work.keep_tokeniser(wanted)
    return wanted


def _learnt(wanted: BytePairTraining, mixture: Mixture, progress: Progress) -> Tokeniser:
    """A tokeniser learnt from a sample of the training documents."""
    progress.say(f"learning a tokeniser of {wanted.vocab_size:,} symbols from a sample")
    progress.begin(mixture.total_bytes, 0)
    try:
        sample = evenly_sampled(_training_texts(mixture, progress), wanted.sample_bytes)
        return train_bpe(sample, vocab_size=wanted.vocab_size)
    finally:
        progress.end()


def _training_texts(mixture: Mixture, progress: Progress) -> Iterator[tuple[bytes, float]]:
    """What goes to train, with the share of the corpus that has been read."""
    total, num_told = max(mixture.total_bytes, 1), 0
    reading = mixture.read()
    for mixed in reading:
        num_read = mixture.num_read(reading.place)
        if num_read - num_told >= TOLD_BYTES:
            progress.advance(num_read - num_told, {})
            num_told = num_read
        if mixed is not None and mixed.split == "train":
            yield mixed.data, num_read / total


def _encode(
    work: Workplace,
    mixture: Mixture,
    preparation: Preparation,
    tokeniser: Tokeniser,
    storing: Storing,
    progress: Progress,
) -> Manifest:
    """Encode all there is, and say what it has become."""
    writer = CorpusWriter(
        work.folder,
        tokeniser,
        num_sources=len(mixture.parts),
        shard_tokens=storing.shard_tokens,
    )
    with closing(writer):
        place = encode(mixture, tokeniser, writer, progress, commit_seconds=storing.commit_seconds)
        splits = writer.finish()
    preparation = _with_results(preparation, mixture, place, writer, splits)
    for source in preparation.sources:
        for what, count in source.skipped.items():
            progress.say(f"passed over: {count:,} {what}")
    return Manifest(
        preparation=preparation,
        tokeniser=TokeniserRecord(
            name=tokeniser.name,
            vocab_size=tokeniser.vocab_size,
            end_symbol=tokeniser.end_symbol,
            is_lossless=tokeniser.is_lossless,
            files=file_checksums(work.tokeniser_folder),
        ),
        dtype=writer.dtype.name,
        splits=splits,
    )


def _with_results(
    preparation: Preparation,
    mixture: Mixture,
    place: MixturePlace,
    writer: CorpusWriter,
    splits: Mapping[str, SplitRecord],
) -> Preparation:
    sources = tuple(
        replace(source, counts={name: counts[name] for name in splits}, skipped=skipped)
        for source, counts, skipped in zip(
            preparation.sources, writer.counts, mixture.skipped(place), strict=True
        )
    )
    return replace(preparation, sources=sources)


def _check_splits(manifest: Manifest, names: Sequence[str]) -> None:
    """Refuse a corpus without text, or without a split that was asked for."""
    sources = manifest.preparation.sources
    if not manifest.splits:
        found = [f"{count} {what}" for source in sources for what, count in source.skipped.items()]
        received = ", ".join(["none", *found])
        raise input_error(
            "a corpus must have text",
            received,
            "name other files, or the field that their text is in",
        )
    for name in names:
        if name not in manifest.splits:
            rule = f"the split {name} must have tokens"
            num_documents = sum(split.num_documents for split in manifest.splits.values())
            received = f"none, with {num_documents} documents in all"
            remedy = "hold out more, or 0 for no such split, or cut texts into smaller documents"
            raise input_error(rule, received, remedy)
