"""The real dump of December 2005 to February 2006, counted twice.

The second count is written from the description of the format alone: it looks at one line after
another, follows parent_id step by step, and shares no code with what it checks.
"""

import html
import json
import lzma
import re
from collections import Counter
from pathlib import Path

import pytest

from staircase_attention.data.reddit import Fractions, RedditOptions, RedditSource, episodes_of

DUMP = Path(__file__).parents[3].parent / "shared/data/RC_2005-12_2006-02.jsonl.xz"
pytestmark = pytest.mark.skipif(not DUMP.exists(), reason=f"needs the real dump, {DUMP}")

GONE = ("[deleted]", "[removed]", "")


@pytest.fixture(scope="module")
def lines():
    with lzma.open(DUMP) as file:
        return file.readlines()


@pytest.fixture(scope="module")
def comments(lines):
    """By thread and id."""
    parsed = map(json.loads, lines)
    return {(fields["link_id"], "t1_" + fields["id"]): fields for fields in parsed}


@pytest.fixture(scope="module")
def paths(comments):
    """For each comment with a text, the comments from the top to it; None where one is missing."""
    found = {}
    for key, fields in comments.items():
        if fields["body"].strip() in GONE:
            continue
        path = [fields]
        while path is not None and path[0]["parent_id"][:3] == "t1_":
            parent = comments.get((fields["link_id"], path[0]["parent_id"]))
            path = None if parent is None else [parent, *path]
        found[key] = path
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("reddit")


@pytest.fixture(scope="module")
def source(folder):
    options = RedditOptions(fractions=Fractions(valid=0.05, test=0.05))
    return RedditSource([DUMP], folder, options, num_workers=1)


@pytest.fixture(scope="module")
def documents(source):
    return [document for document, _ in source.documents(None)]


def is_whole(path):
    return path is not None and not any(fields["body"].strip() in GONE for fields in path)


def read(path):
    """The bodies of a path as a page showed them, without white space."""
    text = "".join(fields["body"] for fields in path)
    for _ in range(2):
        # Word by word: html.unescape alone reads `&section=0`, in an address, as `§ion=0`.
        words = re.split(r"(&[#\w]+;)", text)
        words[1::2] = map(html.unescape, words[1::2])
        text = "".join(words)
    return squeezed(text)


def squeezed(text):
    # One comment of this dump has a control character in it, which is not kept.
    return "".join(text.replace("\x05", "").split())


def test_lines_and_comments_are_those_of_an_independent_count(source, lines, comments, paths):
    counts = source.report.comments
    assert source.report.lines.lines == source.report.lines.comments == len(lines) == 13_836
    assert source.report.lines.broken == 0
    assert counts.duplicates == len(lines) - len(comments) == 0
    bodies = Counter(fields["body"].strip() for fields in comments.values())
    assert [counts.deleted, counts.removed, counts.empty] == [bodies[body] for body in GONE]
    assert [counts.deleted, counts.removed, counts.empty] == [1_913, 215, 1]
    # Authors are hashes in this copy, so that no name tells a bot.
    assert counts.bots == 0
    orphans = [
        fields
        for (link, _), fields in comments.items()
        if fields["parent_id"].startswith("t1_") and (link, fields["parent_id"]) not in comments
    ]
    assert counts.orphans == len(orphans) == 246
    # Six of them name a comment that is there, but in another thread, and was written later.
    known = {name: fields for (_, name), fields in comments.items()}
    elsewhere = [fields for fields in orphans if fields["parent_id"] in known]
    assert len(elsewhere) == 6
    for fields in elsewhere:
        assert known[fields["parent_id"]]["created_utc"] > fields["created_utc"]
    assert counts.below_missing == sum(path is None for path in paths.values()) == 396
    assert counts.whole == sum(is_whole(path) for path in paths.values()) == 10_341
    assert counts.below_removed == len(paths) - 396 - 10_341 == 970
    assert source.report.texts.threads == len({link for link, _ in comments}) == 3_811


def test_documents_are_the_paths_of_an_independent_count(source, documents, paths):
    expected = sorted(read(path) for path in paths.values() if is_whole(path))
    assert sorted(squeezed(document.text) for document in documents) == expected
    texts = source.report.texts
    assert texts.documents == len(documents) == len(expected) == 10_341
    assert texts.characters == sum(len(document.text) for document in documents)
    assert sum(document.text.count("\n\n\n") + 1 for document in documents) == sum(
        len(path) for path in paths.values() if is_whole(path)
    )


def test_splits_share_no_thread(documents, source, paths):
    thread_of = {}
    for (link, _), path in paths.items():
        if is_whole(path):
            thread_of.setdefault(read(path), set()).add(link)
    # Texts that occur in one thread only, which nearly all do, tell where their thread is.
    splits = {}
    for document in documents:
        links = thread_of[squeezed(document.text)]
        if len(links) == 1:
            splits.setdefault(min(links), set()).add(document.split)
    assert all(len(each) == 1 for each in splits.values())
    counts = Counter(document.split for document in documents)
    assert {split: texts.documents for split, texts in source.report.splits.items()} == counts
    assert min(counts.values()) > 100


def test_other_forms_repeat_less(folder, source, paths):
    whole = {key: path for key, path in paths.items() if is_whole(path)}
    inner = {(f["link_id"], "t1_" + f["id"]) for path in whole.values() for f in path[:-1]}
    expected = {
        "paths": (len(whole), 2.13),
        "leaves": (len(whole.keys() - inner), 1.26),
        "threads": (len({link for link, _ in whole}), 1.01),
    }
    for form, (num_documents, repetition) in expected.items():
        options = RedditOptions(form=form)
        texts = RedditSource([DUMP], folder, options, num_workers=1).report.texts
        assert texts.documents == num_documents
        assert texts.distinct_characters == source.report.texts.distinct_characters
        assert texts.characters / texts.distinct_characters == pytest.approx(repetition, abs=0.01)


def test_episodes_hold_every_token_of_every_document(documents):
    def encode(text):
        return list(text.encode())

    num_tokens = num_masked = num_episodes = 0
    for document in documents[:2_000]:
        for episode in episodes_of(document.text, encode, padding=0, end=256):
            assert episode.tokens.size == 256
            num_episodes += 1
            num_masked += int(episode.mask.sum())
    lengths = [len(document.text.encode()) + 1 for document in documents[:2_000]]
    num_tokens = sum(lengths)
    assert num_masked == num_tokens
    assert num_episodes == sum(-(-length // 256) for length in lengths)
