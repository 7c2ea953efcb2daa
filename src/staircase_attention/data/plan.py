"""What a corpus will depend on, written down before work on it begins."""

import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from staircase_attention.data.checksums import sha256_of
from staircase_attention.data.manifest import FileRecord, Preparation, SourceRecord
from staircase_attention.data.mixture import Mixture, Part
from staircase_attention.data.tokenisers import BytePairTraining, Tokeniser
from staircase_attention.data.workplace import Workplace


def plan(
    work: Workplace,
    mixture: Mixture,
    kind: str,
    tokeniser: Tokeniser | BytePairTraining,
    *,
    shard_tokens: int,
) -> Preparation:
    """All that the corpus will depend on."""
    sums = work.checksums({path for part in mixture.parts for path in part.source.files})
    if isinstance(tokeniser, BytePairTraining):
        planned: Mapping[str, Any] = {"training": asdict(tokeniser)}
    else:
        with tempfile.TemporaryDirectory() as scratch:
            tokeniser.save(Path(scratch))
            planned = {"files": file_checksums(Path(scratch))}
    return Preparation(
        kind=kind,
        sources=tuple(_source_record(part, sums) for part in mixture.parts),
        parameters={
            "tokeniser": planned,
            "held_out": asdict(mixture.held_out),
            "shard_tokens": shard_tokens,
        },
    )


def _source_record(part: Part, sums: Mapping[Path, str]) -> SourceRecord:
    files = tuple(
        FileRecord(path=str(path), num_bytes=path.stat().st_size, sha256=sums[path])
        for path in part.source.files
    )
    return SourceRecord(
        name=part.source.name,
        weight=float(part.weight),
        parameters=part.source.parameters,
        files=files,
    )


def file_checksums(folder: Path) -> dict[str, str]:
    """The sha256 of each file in a folder."""
    return {path.name: sha256_of(path) for path in sorted(folder.iterdir())}
