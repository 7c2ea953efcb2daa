"""Prepares a corpus from any sources: checksums, tokeniser, encoding, manifest.

Bounded memory: documents are read ahead in batches, encoded on all cores and written in order.
"""

import hashlib
import io
import json
import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from staircase_attention.checks import InputError, check_integer, input_error, printable
from staircase_attention.cores import in_order
from staircase_attention.data import corpus, tokenisers
from staircase_attention.data.compression import open_decompressed
from staircase_attention.data.corpus import Corpus, Manifest, Preparation
from staircase_attention.data.documents import HeldOut, pieces
from staircase_attention.data.mixture import Mixture, MixturePosition, Part, Piece
from staircase_attention.data.readers import ReadingOptions, SplitFile, TextSource
from staircase_attention.data.tokenisers import BytePairTraining, ByteTokeniser, Tokeniser, Tokens
from staircase_attention.data.writer import CorpusWriter, WorkFolder
from staircase_attention.display import Display, counted
from staircase_attention.files import checksum, needing_space, save_folder, sha256_of

# Tokens per file: half a gibibyte, at two bytes each.
SHARD_TOKENS = 1 << 28
# Between two durable points: the most work that a kill can cost, apart from reading again.
COMMIT_SECONDS = 5.0
# Text that is encoded in one call: enough for several pieces per core. The library takes about a
# hundred bytes per token for an encoding, so this bounds memory.
BATCH_BYTES = min(max(1 << 20, (os.cpu_count() or 1) << 17), 1 << 22)
# Calls at the same time: while one hands over its result, the library's threads serve another.
NUM_ENCODERS = 2
# Enwik8's splits, in the order of the file.
ENWIK8_BYTES = {"train": 90_000_000, "valid": 5_000_000, "test": 5_000_000}
ENWIK8_MD5 = "a1fa5ffddb56f4953e226637dabbb36a"


def prepare_text(
    paths: Sequence[str | Path | TextSource] | str | Path | TextSource,
    folder: str | Path,
    *,
    weights: Sequence[float] | None = None,
    tokeniser: Tokeniser | BytePairTraining | str | None = None,
    held_out: HeldOut | None = None,
    options: ReadingOptions | None = None,
    progress: Display | None = None,
    part: tuple[int, int] | None = None,
) -> Corpus:
    """Turn files and folders of text into a corpus.

    Args:
        paths: one or several files and folders: .txt, .jsonl, .parquet or .tar, compressed
            or not. A TextSource has its own options and, if wanted, its own split.
        folder: the output folder; must not exist.
        weights: one per path, 1 by default: how often its training documents come. 2 is twice, in
            two passes; 0.5 is half of the documents.
        tokeniser: a tokeniser, its name (as "bytes"), or how to learn one; None learns one of
            8,008 symbols.
        held_out: fractions for valid and test.
        options: how texts are extracted from files.
        part: (3, 16) for the third of 16 parts, see `prepare`.
    """
    progress = progress or Display()
    paths = [paths] if isinstance(paths, str | Path | TextSource) else paths
    weights = [1.0] * len(paths) if weights is None else weights
    if len(weights) != len(paths):
        rule = f"there must be one weight for each of {len(paths)} inputs"
        raise input_error(rule, len(weights), "give one for each, or none at all")
    if isinstance(tokeniser, str):
        tokeniser = tokenisers.named_tokeniser(tokeniser)
    parts, splits = [], dict[Path, str | None]()
    for path, weight in zip(paths, weights, strict=True):
        source = path if isinstance(path, TextSource) else TextSource(path, options=options)
        for file in source.files:
            if splits.setdefault(file.resolve(), source.split) != source.split:
                received = f"{file} as an input and as a file of its own"
                remedy = "move it out of the folder"
                raise input_error("the file of a split must be no other input", received, remedy)
        report_files(source, progress)
        parts.append(Part(source=source, weight=weight))
    return prepare(
        parts,
        folder,
        kind="text",
        tokeniser=tokeniser or BytePairTraining(),
        held_out=held_out,
        progress=progress,
        part=part,
    )


def report_files(source: TextSource, progress: Display) -> None:
    """Report files that are left out, or that are not UTF-8."""
    notes = ("skipped: {} of other kinds", source.others), ("not UTF-8: {}", source.not_utf8)
    for note, found in notes:
        if found:
            noted = note.format(counted(len(found), "files"))
            progress.say(printable(f"{noted}, such as {found[0]}"))


def prepare_enwik8(
    path: str | Path, folder: str | Path, *, progress: Display | None = None
) -> Corpus:
    """Enwik8 as in the paper: 256 symbols; 90, 5 and 5 million bytes; no end symbol.

    The file may be plain or compressed: .zip, .gz, .bz2, .xz or .zst. `folder` must not exist.
    """
    source = SplitFile(path, ENWIK8_BYTES)
    # Before anything is written: another file would give other numbers than the paper's.
    with open_decompressed(Path(path)) as file:
        md5 = hashlib.file_digest(file, partial(hashlib.md5, usedforsecurity=False)).hexdigest()
    if md5 != ENWIK8_MD5:
        rule = f"{path} must be enwik8, of md5 {ENWIK8_MD5}"
        remedy = "fetch enwik8 again: mattmahoney.net/dc/enwik8.zip"
        raise input_error(rule, f"one of md5 {md5}", remedy)
    return prepare(
        [Part(source=source)],
        folder,
        kind="enwik8",
        tokeniser=ByteTokeniser(has_end_symbol=False),
        held_out=HeldOut(valid=0, test=0),
        progress=progress,
    )


def prepare(
    parts: Sequence[Part],
    folder: str | Path,
    *,
    kind: str,
    tokeniser: Tokeniser | BytePairTraining,
    held_out: HeldOut | None = None,
    progress: Display | None = None,
    part: tuple[int, int] | None = None,
) -> Corpus:
    """Turn sources into a corpus; a killed preparation resumes when it is run again.

    Work is done in `folder` + '.unfinished'; `folder` appears when it is complete. Refused input
    leaves nothing behind. If the very same corpus exists already, it is opened.

    Args as of `prepare_text`; `kind` is the corpus's in its manifest, and `held_out` is for
    documents without a split of their own. `part=(3, 16)` prepares the third of 16 parts, in
    `folder` + '.part-3-of-16'. `join` makes the corpus of all of them, with the bytes that one
    preparation gives.
    """
    progress = progress or Display()
    mark: dict[str, Any] = {}
    if part is not None:
        parts, mark = _share(parts, tokeniser, *part)
        folder = f"{folder}.part-{part[0]}-of-{part[1]}"
    mixture = Mixture(parts=parts, held_out=held_out or HeldOut())

    def write(writer: CorpusWriter, learnt: Tokeniser) -> list[dict[str, int]]:
        return mixture.skipped(_write_documents(mixture, learnt, writer, progress))

    def learn() -> Tokeniser:
        # Before any work that would be lost.
        if part is None:
            _check_documents(mixture, kind)
        if isinstance(tokeniser, BytePairTraining):
            return _learn_tokeniser(tokeniser, mixture, progress)
        return tokeniser

    return _build(folder, lambda: _plan(mixture, kind, tokeniser, mark), learn, write, progress)


def join(folders: Sequence[str | Path], folder: str | Path) -> Corpus:
    """One corpus of all parts, with the bytes of a preparation by one machine.

    A part is a corpus of some files, or of some of Reddit's partitions. Its manifest names its
    number and all inputs. Parts in order have the documents of one preparation in order.
    `folders` are those of all parts, in any order; `folder`, the output, must not exist.
    """
    parts = [Corpus.open(one) for one in folders]
    parts.sort(key=lambda one: _mark(one).get("number", 0))
    plan, num_documents, skipped = _joined_plan(parts), Counter[str](), Counter[str]()
    for part in parts:
        part.verify_files()
        skipped.update(part.manifest.preparation.sources[0].skipped)
        for name, split in part.manifest.splits.items():
            num_documents[name] += split.num_documents
    _check_splits(num_documents, plan.parameters["held_out"], plan.kind, [skipped])

    def write(writer: CorpusWriter, _: Tokeniser) -> list[dict[str, int]]:
        for part in parts:
            writer.append(part)
        return [skipped]

    return _build(folder, lambda: plan, lambda: parts[0].tokeniser, write, Display())


def _build(
    folder: str | Path,
    make_plan: Callable[[], Preparation],
    make_tokeniser: Callable[[], Tokeniser],
    write: Callable[[CorpusWriter, Tokeniser], list[dict[str, int]]],
    progress: Display,
) -> Corpus:
    """Make the corpus of a plan, unless it is there; `write` gives what each source skipped."""
    work, remedy = WorkFolder(Path(folder)), "free some and run this again to resume it"
    with needing_space("a corpus", folder, lambda: remedy), work.locked():
        plan = make_plan()
        if work.is_done(plan):
            progress.say(f"{folder} is already there")
            return Corpus.open(folder)
        work.claim(plan)
        try:
            if not work.tokeniser.exists():
                save_folder(work.tokeniser, make_tokeniser().save)
            tokeniser = tokenisers.load_tokeniser(work.tokeniser)
            size = plan.parameters["shard_tokens"]
            num_sources = len(plan.sources)
            writer = CorpusWriter(work.path, tokeniser, num_sources=num_sources, shard_tokens=size)
            with closing(writer):
                manifest = _describe(work, writer, plan, write(writer, tokeniser), tokeniser)
        except InputError:
            # The same input would be refused again; any other stop can be resumed.
            work.discard()
            raise
        work.finish(manifest)
    return Corpus.open(folder)


def _share(
    parts: Sequence[Part], tokeniser: Tokeniser | BytePairTraining, number: int, count: int
) -> tuple[list[Part], dict[str, Any]]:
    """The sources of one part, and what its manifest says of it."""
    check_integer("the number of parts", count, minimum=1, example=16)
    if number not in range(1, count + 1):
        raise input_error(f"the part must be from 1 to {count}", number, f"use 1/{count}")
    if isinstance(tokeniser, BytePairTraining):
        remedy = "train it on a sample first, and name its folder: --tokeniser SAMPLE/tokeniser"
        raise input_error("all parts must have one tokeniser", "one to train", remedy)
    source = parts[0].source
    if len(parts) > 1 or parts[0].weight > 1 or not hasattr(source, "share"):
        rule = "a preparation in parts must have one folder of files, or dumps, of weight 1 at most"
        received = f"{counted(len(parts), 'inputs')}, the first of weight {parts[0].weight:g}"
        raise input_error(rule, received, "put all files into one folder")
    inputs = _digest((str(path), path.stat().st_size) for path in source.files)
    mark = {"part": {"number": number, "count": count, "inputs": inputs}}
    return [replace(parts[0], source=source.share(number - 1, count))], mark


def _digest(files: Iterable[tuple[str, int]]) -> str:
    """What tells lists of files and their sizes apart."""
    return checksum(json.dumps(list(files)).encode())


def _mark(part: Corpus) -> dict[str, Any]:
    return dict(part.manifest.preparation.parameters.get("part", {}))


def _joined_plan(parts: Sequence[Corpus]) -> Preparation:
    """What one machine would have planned; refused unless all parts are there once and alike."""
    marks = [_mark(part) for part in parts]
    numbers = [mark.get("number", "a whole corpus") for mark in marks]
    if not marks or numbers != list(range(1, marks[0].get("count", 0) + 1)):
        rule = "all parts of a preparation must be there once"
        raise input_error(rule, ", ".join(map(str, numbers)) or "none", "name the folders of all")
    plans = [part.manifest.preparation.without_results() for part in parts]
    files = tuple(dict.fromkeys(file for plan in plans for file in plan.sources[0].files))
    wholes = [
        replace(
            plan,
            sources=(replace(plan.sources[0], files=files),),
            parameters={name: one for name, one in plan.parameters.items() if name != "part"},
        )
        for plan in plans
    ]
    inputs = _digest((file.path, file.num_bytes) for file in files)
    for part, mark, whole in zip(parts, marks, wholes, strict=True):
        if whole != wholes[0] or (mark["count"], mark["inputs"]) != (len(parts), inputs):
            rule = "all parts must be made from the same files with the same settings"
            raise input_error(rule, f"others in {part.folder}", "prepare all of them alike")
    return wholes[0]


def _plan(
    mixture: Mixture, kind: str, tokeniser: Tokeniser | BytePairTraining, mark: dict[str, Any]
) -> Preparation:
    """All that the corpus will depend on."""
    paths = {path for part in mixture.parts for path in part.source.files}
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        files = dict(zip(paths, pool.map(_record, paths), strict=True))
    if isinstance(tokeniser, BytePairTraining):
        planned: Mapping[str, Any] = {"training": asdict(tokeniser)}
    else:
        # A tokeniser is known by the checksums of its files, as they will be in the corpus.
        with tempfile.TemporaryDirectory() as scratch:
            tokeniser.save(Path(scratch))
            planned = {"files": _file_checksums(Path(scratch))}
    held_out = asdict(mixture.held_out)
    parameters = {"tokeniser": planned, "held_out": held_out, "shard_tokens": SHARD_TOKENS}
    sources = tuple(
        corpus.SourceRecord(
            name=part.source.name,
            weight=float(part.weight),
            parameters=part.source.parameters,
            files=tuple(files[path] for path in part.source.files),
        )
        for part in mixture.parts
    )
    return Preparation(kind=kind, sources=sources, parameters=parameters | mark)


def _record(path: Path) -> corpus.FileRecord:
    size = path.stat().st_size
    return corpus.FileRecord(path=str(path), num_bytes=size, sha256=sha256_of(path))


def _file_checksums(folder: Path) -> dict[str, str]:
    return {path.name: sha256_of(path) for path in sorted(folder.iterdir())}


def _learn_tokeniser(training: BytePairTraining, mixture: Mixture, progress: Display) -> Tokeniser:
    """A tokeniser learnt from a sample of the training documents."""
    progress.say(f"learning a tokeniser of {training.vocab_size:,} symbols from a sample")
    total = mixture.total_bytes
    progress.begin("", 0, total)

    def texts() -> Iterator[tuple[bytes, float]]:
        for piece, position in mixture.read(mixture.first_position()):
            num_read = mixture.num_read(position)
            progress.advance(num_read)
            if piece is not None and piece.split == "train":
                yield piece.data, num_read / max(total, 1)

    sample = tokenisers.sample_evenly(texts(), training.sample_bytes)
    return tokenisers.train_bpe(sample, vocab_size=training.vocab_size)


def _describe(
    work: WorkFolder,
    writer: CorpusWriter,
    plan: Preparation,
    all_skipped: list[dict[str, int]],
    tokeniser: Tokeniser,
) -> Manifest:
    """The manifest of all that was written, with what was skipped of each source."""
    splits, sources = writer.finish(), []
    for number, skipped in enumerate(all_skipped):
        counts = {name: writer.counts(number, name) for name in splits}
        # By name, so that it does not matter which part met what first.
        ordered = dict(sorted(skipped.items()))
        sources.append(replace(plan.sources[number], counts=counts, skipped=ordered))
    return Manifest(
        preparation=replace(plan, sources=tuple(sources)),
        tokeniser=corpus.TokeniserRecord(
            name=tokeniser.name,
            vocab_size=tokeniser.vocab_size,
            end_symbol=tokeniser.end_symbol,
            is_lossless=tokeniser.is_lossless,
            files=_file_checksums(work.tokeniser),
        ),
        dtype=writer.dtype.name,
        splits=splits,
    )


def _check_documents(mixture: Mixture, kind: str) -> None:
    """Refuse a mixture without documents for a split that was asked for."""
    held_out, num_documents = asdict(mixture.held_out), Counter[str]()
    skipped: list[dict[str, int]] = []
    for piece, position in mixture.read(mixture.first_position()):
        skipped = mixture.skipped(position)
        if piece is not None:
            num_documents[piece.split] += piece.is_last
            # The beginning of a document is enough.
            if num_documents.keys() >= {*_wanted(held_out)}:
                return
    _check_splits(num_documents, held_out, kind, skipped)


def _wanted(held_out: Mapping[str, float]) -> list[str]:
    return ["train", *(name for name, share in held_out.items() if share > 0)]


def _check_splits(
    num_documents: Mapping[str, int],
    held_out: Mapping[str, float],
    kind: str,
    all_skipped: Iterable[Mapping[str, int]],
) -> None:
    """Refuse splits without documents."""
    found = [f"{what}: {n:,}" for skipped in all_skipped for what, n in skipped.items()]
    if not num_documents:
        remedy = "name other files, or in `prepare` the field of their text with --text-field"
        if kind == "reddit":
            remedy = "name Pushshift dumps of comments, such as RC_2019-07.zst"
        raise input_error("a corpus must have text", ", ".join(["none", *found]), remedy)
    for name in _wanted(held_out):
        if not num_documents.get(name):
            total = f"with {counted(sum(num_documents.values()), 'documents')} in all"
            received = ", ".join(["none", total, *found])
            remedy = "choose --valid and --test (0 for none), or --valid-file, or --paragraphs"
            raise input_error(f"the split {name} must have tokens", received, remedy)


# Pieces that are encoded in one call, and the position of the mixture after them. It is None
# inside a piece of the mixture, where a preparation cannot resume.
_Batch = tuple[list[Piece], MixturePosition | None]


def _write_documents(
    mixture: Mixture, tokeniser: Tokeniser, writer: CorpusWriter, progress: Display
) -> MixturePosition:
    """Write all documents from the writer's position on; the position at the end."""
    position = writer.position or mixture.first_position()
    last_commit = time.monotonic()
    batches = _batches(mixture, position)

    def encode(batch: _Batch) -> tuple[_Batch, list[Tokens]]:
        return batch, tokeniser.encode_batch([piece.data for piece in batch[0]])

    progress.begin("", mixture.num_read(position), mixture.total_bytes)
    with ThreadPoolExecutor(NUM_ENCODERS, thread_name_prefix="encode") as pool:
        for (batch, after), encoded in in_order(pool, encode, batches, num_ahead=NUM_ENCODERS):
            writer.add(batch, encoded)
            # Batches may end inside a piece, from where reading cannot resume.
            position = after or position
            progress.advance(mixture.num_read(position), **writer.facts)
            if after is not None and time.monotonic() - last_commit >= COMMIT_SECONDS:
                writer.make_durable(position)
                last_commit = time.monotonic()
    return position


def _batches(mixture: Mixture, start: MixturePosition) -> Iterator[_Batch]:
    """Pieces that are cut where they are long, in batches of about BATCH_BYTES."""
    batch: list[Piece] = []
    size, position = 0, start
    for piece, position in mixture.read(start):
        for data, is_last in pieces(io.BytesIO(piece.data).read) if piece else ():
            if size >= BATCH_BYTES:
                yield batch, None
                batch, size = [], 0
            assert piece is not None
            batch.append(replace(piece, data=data, is_last=is_last and piece.is_last))
            size += len(data)
        if size >= BATCH_BYTES:
            yield batch, position
            batch, size = [], 0
    yield batch, position
