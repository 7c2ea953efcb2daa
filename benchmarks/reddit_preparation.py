"""How much memory, disk and time a large Reddit dump takes, made from many copies of a small one.

    python benchmarks/reddit_preparation.py RC_2005-12_2006-02.jsonl.xz --copies 64
    python benchmarks/reddit_preparation.py RC_2005-12_2006-02.jsonl.xz --copies 64 --one-thread
    python benchmarks/reddit_preparation.py RC_2005-12_2006-02.jsonl.xz --copies 64 --zst

Each copy has ids of its own, so that comments and threads are as many times as many. With
`--one-thread` all comments are in a single thread; with `--zst` the dump is compressed with a
window of 2 GiB, as Pushshift's are. Dump and preparation are made in processes of their own, so
that the peak of memory is that of the preparation alone.
"""

import argparse
import json
import lzma
import multiprocessing
import os
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import zstandard

from staircase_attention.data.reddit import RedditSource

MEGABYTE = 1e6
# A line is seen at once, also where a run is cut short.
say = partial(print, flush=True)


def lines(choice: argparse.Namespace) -> Iterator[bytes]:
    """The lines of all copies."""
    with lzma.open(choice.dump, "rt") as file:
        comments = [json.loads(line) for line in file]
    for copy in range(choice.copies):
        for fields in comments:
            link = "t3_one" if choice.one_thread else f"{fields['link_id']}{copy:04d}"
            is_answer = fields["parent_id"].startswith("t1_")
            changed = {
                "id": f"{fields['id']}{copy:04d}",
                "link_id": link,
                "parent_id": f"{fields['parent_id']}{copy:04d}" if is_answer else link,
            }
            yield json.dumps(fields | changed).encode() + b"\n"


def write(choice: argparse.Namespace, path: Path) -> None:
    """Make the large dump."""
    num_bytes = num_lines = 0
    with path.open("wb") as file:
        settings = zstandard.ZstdCompressionParameters.from_level(1, window_log=31, enable_ldm=True)
        compressor = zstandard.ZstdCompressor(compression_params=settings)
        target = compressor.stream_writer(file, closefd=False) if choice.zst else file
        for line in lines(choice):
            target.write(line)
            num_bytes += len(line)
            num_lines += 1
        if choice.zst:
            target.close()
    say(f"{num_lines:,} comments, {num_bytes / MEGABYTE:,.0f} MB of lines")


def measure(path: Path, work: Path) -> None:
    """Prepare it, and take every document once."""
    imported = peak(resource.RUSAGE_SELF)
    source = RedditSource([path], work)
    began = time.perf_counter()
    documents = source.documents()
    sizes = [len(next(documents)[0].text)]
    read = time.perf_counter()
    sizes += [len(document.text) for document, _ in documents]
    done = time.perf_counter()
    num_documents, characters = len(list(filter(None, sizes))), sum(sizes) / MEGABYTE
    disk = sum(file.stat().st_size for file in work.rglob("*") if file.is_file()) / MEGABYTE
    say(f"to the first document {read - began:.0f} s; load {os.getloadavg()[0]:.1f}")
    say(f"{num_documents:,} documents, {characters:,.0f} million characters in {done - read:.0f} s")
    say(f"work folder {disk:,.0f} MB")
    workers = peak(resource.RUSAGE_CHILDREN)
    say(f"memory: {peak(resource.RUSAGE_SELF)} MiB at the most, {imported} of them by importing")
    say(f"        {workers} MiB for the largest of its workers, mostly shared")


def peak(who: int) -> int:
    """MiB."""
    return resource.getrusage(who).ru_maxrss >> 10


def main() -> None:
    """Write, measure, throw away."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dump", type=Path, help="a dump, compressed with xz")
    parser.add_argument("--copies", type=int, default=64)
    parser.add_argument("--one-thread", action="store_true")
    parser.add_argument("--zst", action="store_true")
    choice = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "dump")
        for target, arguments in ((write, (choice, path)), (measure, (path, Path(folder, "work")))):
            process = context.Process(target=target, args=arguments)
            process.start()
            process.join()
            if process.exitcode:
                sys.exit(process.exitcode)


if __name__ == "__main__":
    main()
