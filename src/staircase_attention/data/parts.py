"""Joins the parts of a preparation that several machines have shared.

A part is a corpus of some files, or of some of Reddit's partitions, whose manifest names its number
and all inputs. Parts in order are the documents of one preparation in order, so that joined files
have the same bytes.
"""

from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from staircase_attention.checks import InputError, input_error
from staircase_attention.data.corpus import Corpus, Preparation
from staircase_attention.data.documents import HeldOut
from staircase_attention.data.preparation import check_splits, describe, digest, needs_room
from staircase_attention.data.writer import CorpusWriter, WorkFolder


def join(folders: Sequence[str | Path], folder: str | Path) -> Corpus:
    """One corpus of all parts, with the bytes of a preparation by one machine.

    Args:
        folders: of all parts, in any order.
        folder: the output folder; must not exist.
    """
    corpora = _ordered([Corpus.open(one) for one in folders])
    first, plan = corpora[0], _joined_plan(corpora)
    skipped = Counter[str]()
    for corpus in corpora:
        corpus.verify_files()
        skipped.update(corpus.manifest.preparation.sources[0].skipped)
    work = WorkFolder(Path(folder))
    with needs_room(folder), work.locked():
        if not work.is_done(plan):
            work.claim(plan)
            if not work.tokeniser.exists():
                work.save_tokeniser(first.tokeniser)
            size = plan.parameters["shard_tokens"]
            writer = CorpusWriter(work.path, first.tokeniser, num_sources=1, shard_tokens=size)
            with closing(writer):
                for corpus in corpora:
                    writer.append(corpus)
                manifest = describe(work, writer, plan, [skipped])
            try:
                check_splits(manifest, HeldOut(**plan.parameters["held_out"]).names)
            except InputError:
                work.discard()
                raise
            work.finish(manifest)
    return Corpus.open(folder)


def _ordered(corpora: list[Corpus]) -> list[Corpus]:
    """Parts by number; refused where one is missing or comes twice."""
    marks = [one.manifest.preparation.parameters.get("part") for one in corpora]
    for corpus, mark in zip(corpora, marks, strict=True):
        if mark is None:
            rule = "a folder to join must hold a part"
            raise input_error(rule, f"{corpus.folder}, a whole corpus", "name folders of --part")
    numbers = sorted(mark["number"] for mark in marks)
    count = max((mark["count"] for mark in marks), default=1)
    if numbers != list(range(1, count + 1)):
        rule = f"all parts from 1 to {count} must be there once"
        raise input_error(
            rule, ", ".join(map(str, numbers)) or "none", "prepare or name the others"
        )
    return sorted(corpora, key=lambda one: one.manifest.preparation.parameters["part"]["number"])


def _joined_plan(corpora: Sequence[Corpus]) -> Preparation:
    """What one machine would have planned; refused where parts differ in settings or inputs."""
    plans = [one.manifest.preparation.without_results() for one in corpora]
    files = tuple(dict.fromkeys(file for plan in plans for file in plan.sources[0].files))
    whole = []
    for plan in plans:
        parameters = {**plan.parameters, "part": {**plan.parameters["part"], "number": None}}
        sources = (replace(plan.sources[0], files=files),)
        whole.append(replace(plan, sources=sources, parameters=parameters))
    others = [one.folder for one, plan in zip(corpora, whole, strict=True) if plan != whole[0]]
    inputs = digest((file.path, file.num_bytes) for file in files)
    if others or whole[0].parameters["part"]["inputs"] != inputs:
        rule = (
            f"parts must be made from the same files with the same settings as {corpora[0].folder}"
        )
        received = f"others in {others[0]}" if others else "other files"
        raise input_error(rule, received, "prepare it again")
    parameters = {name: value for name, value in whole[0].parameters.items() if name != "part"}
    return replace(whole[0], parameters=parameters)
