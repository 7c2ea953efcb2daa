"""A corpus from any mix of text files and folders, as BASE is one."""

from collections.abc import Sequence
from pathlib import Path

from staircase_attention.checks import input_error
from staircase_attention.data.corpus import Corpus
from staircase_attention.data.mixture import Part
from staircase_attention.data.preparing import Storing, prepare
from staircase_attention.data.progress import Progress, Silent
from staircase_attention.data.readers import ReadingOptions
from staircase_attention.data.splits import HeldOut
from staircase_attention.data.text_source import TextSource
from staircase_attention.data.tokenisers import BytePairTraining, Tokeniser, named_tokeniser


def prepare_text(
    paths: Sequence[str | Path | TextSource] | str | Path | TextSource,
    folder: str | Path,
    *,
    weights: Sequence[float] | None = None,
    tokeniser: Tokeniser | BytePairTraining | str | None = None,
    held_out: HeldOut | None = None,
    options: ReadingOptions | None = None,
    storing: Storing | None = None,
    progress: Progress | None = None,
) -> Corpus:
    """Turn files and folders of text into a corpus.

    Args:
        paths: files and folders, or one of these: .txt, .jsonl, .parquet, .tar or dumps of
            Wikipedia, compressed or not. A TextSource has options and, if wanted, a split of its
            own.
        folder: the corpus to be.
        weights: one for each path, 1 where None: how often its training documents come. 2 is
            twice, in two passes; 0.5 is half of the documents.
        tokeniser: one that there is, its name, as "bytes", or how to learn one; None learns one of
            8,008 symbols.
        held_out: how much goes to valid and test.
        options: how texts are taken out of files.
        storing: how files are written.
        progress: who is told.
    """
    progress = progress or Silent()
    paths = [paths] if isinstance(paths, str | Path | TextSource) else paths
    weights = [1.0] * len(paths) if weights is None else weights
    if len(weights) != len(paths):
        rule = f"there must be one weight for each of {len(paths)} inputs"
        raise input_error(rule, len(weights), "give one for each, or none at all")
    if isinstance(tokeniser, str):
        tokeniser = named_tokeniser(tokeniser)
    sources = [_source(path, options) for path in paths]
    for source in sources:
        if source.others:
            count, example = len(source.others), source.others[0]
            progress.say(f"passed over: {count:,} files of other kinds, such as {example}")
    return prepare(
        [Part(source=one, weight=weight) for one, weight in zip(sources, weights, strict=True)],
        folder,
        kind="text",
        tokeniser=tokeniser or BytePairTraining(),
        held_out=held_out,
        storing=storing,
        progress=progress,
    )


def _source(path: str | Path | TextSource, options: ReadingOptions | None) -> TextSource:
    return path if isinstance(path, TextSource) else TextSource(path, options=options)
