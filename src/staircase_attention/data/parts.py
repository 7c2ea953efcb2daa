"""Joins the parts of a preparation that several machines have shared.

A part is a corpus of some files, or of some of Reddit's partitions. Its manifest names its number
and all inputs. Parts in order have the documents of one preparation in order, and joined its bytes.
"""

from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from staircase_attention.checks import InputError, input_error
from staircase_attention.data.corpus import Corpus, Preparation
from staircase_attention.data.preparation import describe, digest, needs_room
from staircase_attention.data.writer import CorpusWriter, WorkFolder
from staircase_attention.files import save_folder


def join(folders: Sequence[str | Path], folder: str | Path) -> Corpus:
    """One corpus of all parts, with the bytes of a preparation by one machine.

    Args:
        folders: of all parts, in any order.
        folder: the output folder; must not exist.
    """
    parts = [Corpus.open(one) for one in folders]
    parts.sort(key=lambda one: _mark(one).get("number", 0))
    plan = _joined_plan(parts)
    skipped = Counter[str]()
    for part in parts:
        part.verify_files()
        skipped.update(part.manifest.preparation.sources[0].skipped)
    work = WorkFolder(Path(folder))
    with needs_room(folder), work.locked():
        if not work.is_done(plan):
            work.claim(plan)
            tokeniser, size = parts[0].tokeniser, plan.parameters["shard_tokens"]
            if not work.tokeniser.exists():
                save_folder(work.tokeniser, tokeniser.save)
            writer = CorpusWriter(work.path, tokeniser, num_sources=1, shard_tokens=size)
            with closing(writer):
                for part in parts:
                    writer.append(part)
                try:
                    manifest = describe(work, writer, plan, [skipped])
                except InputError:
                    work.discard()
                    raise
            work.finish(manifest)
    return Corpus.open(folder)


def _mark(part: Corpus) -> dict[str, Any]:
    mark: dict[str, Any] = part.manifest.preparation.parameters.get("part", {})
    return mark


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
    inputs = digest((file.path, file.num_bytes) for file in files)
    for part, mark, whole in zip(parts, marks, wholes, strict=True):
        if whole != wholes[0] or (mark["count"], mark["inputs"]) != (len(parts), inputs):
            rule = "all parts must be made from the same files with the same settings"
            raise input_error(rule, f"others in {part.folder}", "prepare all of them alike")
    return wholes[0]
