"""A corpus counted a second time, from its raw files, by code that shares nothing with the package.

    python benchmarks/independent_counts.py enwik8 corpora/enwik8 enwik8.xz
    python benchmarks/independent_counts.py reddit corpora/reddit RC_2005-12_2006-02.jsonl.xz
    python benchmarks/independent_counts.py text corpora/base novels.tar.xz topical.jsonl

Raw files are read with the standard library, and encoded text by text, each in one piece, by the
`tokenizers` library with the corpus's tokenizer.json. The corpus's own counts are read from its
manifest and, for Reddit, from the work folder beside it. The shards are cut at end symbols; each
document must have the very tokens of one of the texts, and tells that text's split. So documents,
bytes and tokens of a split are counted from the raw text, and all texts must turn up.

Prints a table, and ends with 1 if two counts differ.
"""

import argparse
import array
import hashlib
import html
import json
import lzma
import re
import sys
import tarfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from tokenizers import Tokenizer

FIELDS = ("id", "parent_id", "link_id", "body", "created_utc")
GONE = {"[deleted]": "deleted", "[removed]": "removed", "": "empty"}
ENWIK8_SPLITS = (("train", 90_000_000), ("valid", 5_000_000), ("test", 5_000_000))
CODES = {"uint8": "B", "uint16": "H", "uint32": "I"}
Tokens: TypeAlias = "array.array[int]"


class Table:
    """What the corpus says beside what is counted here."""

    def __init__(self) -> None:
        self.differs = False
        sys.stdout.write("| | the corpus says | counted from the raw files |\n|---|---|---|\n")

    def row(self, what: str, ours: int | str, theirs: int | str) -> None:
        """One line; numbers with commas."""
        self.differs |= ours != theirs
        cells = (f"{one:,}" if isinstance(one, int) else one for one in (ours, theirs))
        sys.stdout.write(f"| {what} | {' | '.join(cells)} |\n")


def read(path: Path) -> bytes:
    """A file, decompressed."""
    if path.suffix == ".xz":
        with lzma.open(path) as file:
            return file.read()
    return path.read_bytes()


def manifest_of(corpus: Path) -> dict[str, Any]:
    """What the corpus says of itself."""
    content: dict[str, Any] = json.loads((corpus / "manifest.json").read_text())
    return content


def shards(corpus: Path, manifest: dict[str, Any], split: str) -> Tokens:
    """The tokens of a split."""
    tokens = array.array(CODES[manifest["dtype"]])
    for shard in manifest["splits"][split]["shards"]:
        tokens.frombytes((corpus / shard["file"]).read_bytes())
    return tokens


def documents(tokens: Tokens, end_symbol: int) -> Iterator[list[int]]:
    """What is before each end symbol."""
    start = 0
    while start < len(tokens):
        end = tokens.index(end_symbol, start)
        yield tokens[start:end].tolist()
        start = end + 1


def count_enwik8(corpus: Path, files: Sequence[Path], table: Table) -> None:
    """The bytes of the file are the tokens of the splits, in order."""
    (path,) = files
    raw, manifest = read(path), manifest_of(corpus)
    kept = b"".join(shards(corpus, manifest, name).tobytes() for name, _ in ENWIK8_SPLITS)
    table.row("md5", hashlib.md5(kept).hexdigest(), hashlib.md5(raw).hexdigest())
    start = 0
    for name, size in ENWIK8_SPLITS:
        record = manifest["splits"][name]
        part = raw[start : start + size]
        start += size
        table.row(f"{name}: bytes", record["num_bytes"], len(part))
        table.row(f"{name}: tokens", record["num_tokens"], len(part))
        table.row(f"{name}: documents", record["num_documents"], 1)


def texts_of(path: Path) -> Iterator[str]:
    """The documents of a tar of texts or of JSON lines, where turns are lines `speaker: text`."""
    if ".tar" in path.name:
        with tarfile.open(path) as archive:
            for member in archive:
                if member.isfile():
                    content = archive.extractfile(member)
                    assert content is not None
                    yield content.read().decode()
        return
    for line in read(path).decode().splitlines():
        record = json.loads(line)
        turns = record.get("turns")
        yield record["text"] if turns is None else "\n".join(": ".join(turn) for turn in turns)


def count_text(corpus: Path, files: Sequence[Path], table: Table) -> None:
    """Every text of every file, in one split, with its weight."""
    weights: dict[str, int] = {}
    for path, source in zip(files, manifest_of(corpus)["preparation"]["sources"], strict=True):
        found = list(texts_of(path))
        weights |= dict.fromkeys(found, int(source["weight"]))
        counts = source["counts"]
        ours = counts["train"]["num_documents"] // int(source["weight"])
        ours += counts["valid"]["num_documents"] + counts["test"]["num_documents"]
        table.row(f"{path.name}: documents", ours, len(found))
    count_splits(corpus, weights, table, is_once_held_out=True)


def count_splits(
    corpus: Path, times: Mapping[str, int], table: Table, *, is_once_held_out: bool
) -> dict[str, list[str]]:
    """Documents, bytes and tokens of each split; gives the texts that are in it.

    Each text must be there as many times as is said, or once if it is held out and that is so.
    """
    manifest = manifest_of(corpus)
    library = Tokenizer.from_file(str(corpus / "tokeniser" / "tokenizer.json"))
    library.encode_special_tokens = True
    tokens = {text: array.array("I", library.encode(text).ids) for text in times}
    text_of = {ids.tobytes(): text for text, ids in tokens.items()}
    found: dict[str, list[str]] = {}
    for name, record in manifest["splits"].items():
        given = documents(shards(corpus, manifest, name), manifest["tokeniser"]["end_symbol"])
        known = (text_of.get(array.array("I", ids).tobytes()) for ids in given)
        texts = found[name] = [text for text in known if text is not None]
        num_bytes = sum(len(text.encode()) for text in texts)
        num_tokens = sum(len(tokens[text]) + 1 for text in texts)
        table.row(f"{name}: documents", record["num_documents"], len(texts))
        table.row(f"{name}: bytes", record["num_bytes"], num_bytes)
        table.row(f"{name}: tokens", record["num_tokens"], num_tokens)
    found_times = Counter(text for texts in found.values() for text in texts)
    held_out = {*found["valid"], *found["test"]} if is_once_held_out else set()
    is_right = [found_times[text] == (text in held_out or times[text]) for text in times]
    table.row("different texts, each as often as it must be", sum(is_right), len(times))
    return found


def as_shown(body: str) -> str:
    """A body as its page showed it: entities decoded twice, at most one blank line in a row."""
    for _ in range(2):
        words = re.split(r"(&#?\w+;)", body)
        words[1::2] = map(html.unescape, words[1::2])
        body = "".join(words)
    body = body.replace("\r\n", "\n").replace("\r", "\n")
    body = "".join(one for one in body if one in "\t\n" or (one >= " " and one not in "\x7f\u200b"))
    *lines, last = body.split("\n")
    body = "\n".join([*(line.rstrip(" \t\xa0") for line in lines), last])
    return re.sub("\n{3,}", "\n\n", body).strip()


def read_comments(files: Sequence[Path]) -> tuple[int, int, dict[tuple[str, str], dict[str, Any]]]:
    """How many lines there are, how many are broken, and the comments by thread and name."""
    comments: dict[tuple[str, str], dict[str, Any]] = {}
    num_lines = num_broken = 0
    for line in (line for path in files for line in read(path).splitlines()):
        num_lines += 1
        try:
            fields = json.loads(line)
            assert all(name in fields for name in FIELDS)
            comments.setdefault((fields["link_id"], f"t1_{fields['id']}"), fields)
        except (ValueError, TypeError, AssertionError):
            num_broken += 1
    return num_lines, num_broken, comments


def path_to(
    key: tuple[str, str], comments: dict[tuple[str, str], dict[str, Any]]
) -> list[dict[str, Any]] | None:
    """The comments from the top of a thread to this one; None if one is not there."""
    path = [comments[key]]
    while path[0]["parent_id"].startswith("t1_"):
        above = comments.get((key[0], path[0]["parent_id"]))
        if above is None:
            return None
        path.insert(0, above)
    return path


def count_reddit(corpus: Path, files: Sequence[Path], table: Table) -> None:
    """Comments, paths and threads, followed one by one."""
    num_lines, num_broken, comments = read_comments(files)
    kinds = Counter(GONE.get(fields["body"].strip(), "text") for fields in comments.values())
    examples: Counter[str] = Counter()
    threads_of: dict[str, set[str]] = defaultdict(set)
    num_below_missing = num_below_removed = 0
    for key, fields in comments.items():
        if fields["body"].strip() in GONE:
            continue
        path = path_to(key, comments)
        if path is None:
            num_below_missing += 1
        elif any(above["body"].strip() in GONE for above in path):
            num_below_removed += 1
        else:
            text = "\n\n\n".join(as_shown(above["body"]) for above in path)
            examples[text] += 1
            threads_of[text].add(key[0])
    lines, ours = reddit_counts(corpus)
    table.row("lines", sum(lines.values()), num_lines)
    table.row("comments in", lines["comments"], num_lines - num_broken)
    table.row("broken lines", sum(lines.values()) - lines["comments"], num_broken)
    table.row("duplicates", ours["duplicates"], num_lines - num_broken - len(comments))
    for kind in GONE.values():
        table.row(kind, ours[kind], kinds[kind])
    num_below = num_below_missing + num_below_removed
    table.row("with a text, no whole path", ours["no whole path"], num_below)
    num_documents = sum(split["num_documents"] for split in manifest_of(corpus)["splits"].values())
    table.row("examples", num_documents, examples.total())
    found = count_splits(corpus, examples, table, is_once_held_out=False)
    splits_of = defaultdict(set)
    for name, texts in found.items():
        for text in texts:
            # A text that is in one thread only tells where its thread is.
            if len(threads_of[text]) == 1:
                splits_of[min(threads_of[text])].add(name)
    num_whole = sum(len(names) == 1 for names in splits_of.values())
    table.row("threads that are in one split alone", num_whole, len(splits_of))


def reddit_counts(corpus: Path) -> tuple[Counter[str], Counter[str]]:
    """What the work folder beside a corpus says of lines, and its manifest of comments."""
    work = corpus.with_name(f"{corpus.name}.threads")
    (record,) = work.glob("partitions-*/read.json")
    lines: Counter[str] = Counter()
    for dump in json.loads(record.read_text())["dumps"]:
        lines.update(dump["lines"])
    (source,) = manifest_of(corpus)["preparation"]["sources"]
    words = source["skipped"].items()
    return lines, Counter({what.removeprefix("comments: "): count for what, count in words})


def main() -> None:
    """Count, and say whether all is equal."""
    counters = {"enwik8": count_enwik8, "reddit": count_reddit, "text": count_text}
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=counters)
    parser.add_argument("corpus", type=Path, help="the folder that `staircase prepare` made")
    parser.add_argument("files", type=Path, nargs="+", help="what it was made from")
    chosen = parser.parse_args()
    table = Table()
    counters[chosen.kind](chosen.corpus, chosen.files, table)
    sys.exit(int(table.differs))


if __name__ == "__main__":
    main()
