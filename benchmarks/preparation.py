"""How fast text is prepared, beside the library's own batch encoding, and how fast it is read.

Both take the same documents on the same cores in turns, so that a busy machine slows both:

    python benchmarks/preparation.py enwik8.xz gpt2 --megabytes 20

The library is given documents that are in memory already; a preparation reads them from a file of
JSON lines, splits, encodes and writes them, with checksums, and is timed from end to end. `gpt2` is
a folder with GPT-2's encoder.json and vocab.bpe.
"""

import argparse
import json
import os
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tokenizers import Tokenizer

from staircase_attention.data import (
    Corpus,
    HeldOut,
    TextSource,
    TokenLanes,
    named_tokeniser,
    prepare_text,
)
from staircase_attention.data.tokenisers import BytePairTokeniser

BATCH_DOCUMENTS = 1_000
LANE_SECONDS = 2.0
LANES = ((512, 256), (512, 128), (128, 256), (64, 2_048))
# A line is seen at once, also where a run is cut short.
say = partial(print, flush=True)


def read_documents(path: Path, num_bytes: int) -> list[str]:
    """The first documents of a text, up to a number of bytes."""
    documents, size = [], 0
    for document, _ in TextSource(path).documents(None):
        if document.data:
            documents.append(document.data.decode(errors="replace"))
            size += len(document.data)
        if size >= num_bytes:
            break
    return documents


def encode_all(tokenizer: Tokenizer, name: str, documents: list[str]) -> None:
    """The library's own batch encoding, by one of its methods."""
    encode = getattr(tokenizer, name)
    for first in range(0, len(documents), BATCH_DOCUMENTS):
        encode(documents[first : first + BATCH_DOCUMENTS], add_special_tokens=False)


def timed(action: Callable[[], object]) -> tuple[float, float]:
    """Seconds by the clock, and of all cores together."""
    wall, cores = time.perf_counter(), time.process_time()
    action()
    return time.perf_counter() - wall, time.process_time() - cores


def measure_preparation(
    documents: list[str], tokeniser: BytePairTokeniser, folder: Path, rounds: int
) -> Corpus:
    """The library and a preparation in turns; gives the last corpus."""
    lines = folder / "documents.jsonl"
    lines.write_text("".join(json.dumps({"text": text}) + "\n" for text in documents))
    tokeniser.save(folder)
    library = Tokenizer.from_file(str(folder / "tokenizer.json"))
    seconds: dict[str, list[tuple[float, float]]] = {}
    for number in range(rounds):
        corpus = folder / f"corpus-{number}"
        actions = {
            "encode_batch": lambda: encode_all(library, "encode_batch", documents),
            "encode_batch_fast": lambda: encode_all(library, "encode_batch_fast", documents),
            "prepare_text": lambda to=corpus: prepare_text(
                [lines], to, tokeniser=tokeniser, held_out=HeldOut(valid=0.02, test=0.02)
            ),
        }
        for name, action in actions.items():
            seconds.setdefault(name, []).append(timed(action))
    report(seconds, sum(len(text.encode()) for text in documents) / 1e6)
    return Corpus.open(corpus)


def report(seconds: dict[str, list[tuple[float, float]]], megabytes: float) -> None:
    """Rates, and how the preparation compares."""
    for name, rounds in seconds.items():
        walls = ", ".join(f"{megabytes / wall:.2f}" for wall, _ in rounds)
        cores = statistics.median(megabytes / core for _, core in rounds)
        say(f"{name:18s} {walls} MB/s; {cores:.2f} MB per second of a core")
    for name in ("encode_batch", "encode_batch_fast"):
        pairs = list(zip(seconds[name], seconds["prepare_text"], strict=True))
        wall = statistics.median(theirs[0] / ours[0] for theirs, ours in pairs)
        core = statistics.median(theirs[1] / ours[1] for theirs, ours in pairs)
        say(f"prepare_text is at {wall:.0%} of {name} by the clock, {core:.0%} by cores")


def measure_lanes(corpus: Corpus) -> None:
    """How fast batches are read from mapped memory."""
    for num_lanes, length in LANES:
        split = corpus.split("train")
        lanes = TokenLanes(split=split, num_lanes=num_lanes, segment_length=length)
        position, num_tokens, began = lanes.first_position(), 0, time.perf_counter()
        while time.perf_counter() - began < LANE_SECONDS:
            batch, position = lanes.batch(position)
            num_tokens += batch.inputs.size
        rate = num_tokens / (time.perf_counter() - began) / 1e6
        say(f"{num_lanes} lanes of {length}: {rate:.0f} million tokens per second")


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("text", type=Path, help="a file or folder of text")
    parser.add_argument("tokeniser", type=Path, help="a tokenizer.json or a folder")
    parser.add_argument("--megabytes", type=float, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    chosen = parser.parse_args()
    documents = read_documents(chosen.text, int(chosen.megabytes * 1e6))
    tokeniser = named_tokeniser(str(chosen.tokeniser))
    assert isinstance(tokeniser, BytePairTokeniser)
    load = ", ".join(f"{one:.1f}" for one in os.getloadavg())
    size = sum(len(text.encode()) for text in documents) / len(documents)
    say(f"{len(documents):,} documents of {size:,.0f} bytes; {os.cpu_count()} cores, load {load}")
    with tempfile.TemporaryDirectory() as folder:
        measure_lanes(measure_preparation(documents, tokeniser, Path(folder), chosen.rounds))
    say(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024} MiB")


if __name__ == "__main__":
    main()
