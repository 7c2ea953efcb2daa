"""From documents to shards: read ahead, encode on all cores, write in order."""

import os
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from staircase_attention.data.corpus_writer import CorpusWriter, Piece
from staircase_attention.data.mixture import Mixed, Mixture
from staircase_attention.data.mixture_place import MixturePlace
from staircase_attention.data.pieces import pieces
from staircase_attention.data.progress import Progress
from staircase_attention.data.tokenisers import Tokeniser, Tokens

BATCH_BYTES = min(max(1 << 20, (os.cpu_count() or 1) << 17), 1 << 22)
"""Text encoded in one call: enough for every core to have several pieces. An encoding takes about
a hundred bytes a token while the library holds it, so that this bounds memory."""
NUM_ENCODERS = 2
"""Calls at once: while one hands over its result, the library's threads work for the other."""
COMMIT_SECONDS = 5.0
"""Between two durable points: the most work that a kill can cost, reading aside."""


@dataclass(frozen=True, slots=True)
class Batch:
    """What is encoded in one call."""

    pieces: list[Piece]
    """In order."""
    place: MixturePlace | None
    """Where the mixture stands after it; None inside of what the mixture gave at once."""
    num_bytes: int
    """Bytes of sources, as stored, read since the batch before."""


def encode(
    mixture: Mixture,
    tokeniser: Tokeniser,
    writer: CorpusWriter,
    progress: Progress,
    *,
    commit_seconds: float = COMMIT_SECONDS,
) -> MixturePlace:
    """Write all documents that are not written yet; where the mixture stands in the end."""
    place = writer.place or mixture.first_place()
    progress.begin(mixture.total_bytes, mixture.num_read(place))
    last_commit = time.monotonic()
    try:
        for batch, encoded in _encoded(_batches(mixture, place, tokeniser), tokeniser):
            writer.add(batch.pieces, encoded)
            progress.advance(batch.num_bytes, writer.facts)
            if batch.place is None:
                continue
            place = batch.place
            if time.monotonic() - last_commit >= commit_seconds:
                writer.make_durable(place)
                last_commit = time.monotonic()
    finally:
        progress.end()
    return place


def _batches(mixture: Mixture, place: MixturePlace, tokeniser: Tokeniser) -> Iterator[Batch]:
    """Pieces of about BATCH_BYTES together."""
    gathered: list[Piece] = []
    size, num_read = 0, mixture.num_read(place)
    reading = mixture.read(place)
    for mixed in reading:
        for piece in _pieces(mixed, tokeniser.shortest_piece) if mixed else ():
            # What the mixture gave at once may be much; the place after it is not reached yet.
            if size >= BATCH_BYTES:
                yield Batch(gathered, None, 0)
                gathered, size = [], 0
            gathered.append(piece)
            size += len(piece.data)
        if size >= BATCH_BYTES:
            place = reading.place
            now_read = mixture.num_read(place)
            yield Batch(gathered, place, now_read - num_read)
            gathered, size, num_read = [], 0, now_read
    yield Batch(gathered, reading.place, mixture.num_read(reading.place) - num_read)


def _pieces(mixed: Mixed, shortest: int) -> list[Piece]:
    is_last = not mixed.is_continued
    if len(mixed.data) <= shortest:
        return [Piece(mixed.data, mixed.split, mixed.source, is_last)]
    cut = list(pieces(mixed.data, shortest))
    return [
        Piece(data, mixed.split, mixed.source, is_last and number == len(cut))
        for number, data in enumerate(cut, start=1)
    ]


def _encoded(
    batches: Iterator[Batch], tokeniser: Tokeniser
) -> Iterator[tuple[Batch, list[Tokens]]]:
    """Each batch with its tokens, in order; some are read and encoded ahead."""
    waiting: deque[tuple[Batch, Future[list[Tokens]]]] = deque()
    with ThreadPoolExecutor(NUM_ENCODERS, thread_name_prefix="encode") as pool:
        for batch in batches:
            texts = [piece.data for piece in batch.pieces]
            waiting.append((batch, pool.submit(tokeniser.encode_batch, texts)))
            if len(waiting) > NUM_ENCODERS:
                first, future = waiting.popleft()
                yield first, future.result()
        while waiting:
            first, future = waiting.popleft()
            yield first, future.result()
