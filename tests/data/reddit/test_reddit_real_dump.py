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

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from staircase_attention.data import HeldOut, Part, named_tokeniser, prepare
from staircase_attention.data.reddit import RedditOptions, RedditSource

SHARED = Path(__file__).parents[3].parent / "shared/data"
DUMP = SHARED / "RC_2005-12_2006-02.jsonl.xz"
pytestmark = pytest.mark.skipif(not DUMP.exists(), reason=f"needs the real dump, {DUMP}")

END = 50_256
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
def examples(paths):
    """For each comment whose path is there, the text that a model is to see."""
    shown = {}
    for path in paths.values():
        for fields in path or ():
            shown.setdefault(fields["id"], as_shown(fields["body"]))
    return {
        key: "\n\n\n".join(shown[fields["id"]] for fields in path)
        for key, path in paths.items()
        if is_whole(path)
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("reddit")


@pytest.fixture(scope="module")
def source(folder):
    options = RedditOptions(held_out=HeldOut(valid=0.05, test=0.05))
    return RedditSource([DUMP], folder, options, num_workers=1)


@pytest.fixture(scope="module")
def documents(source):
    return [document for document, _ in source.documents(None)]


@pytest.fixture(scope="module")
def gpt2():
    """GPT-2's tokeniser, straight from the library."""
    if not (SHARED / "vocab.bpe").exists():
        pytest.skip("needs GPT-2's encoder.json and vocab.bpe")
    files = (str(SHARED / "encoder.json"), str(SHARED / "vocab.bpe"))
    tokeniser = Tokenizer(models.BPE.from_file(*files))
    tokeniser.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return tokeniser


@pytest.fixture(scope="module")
def tokens(examples, gpt2):
    """The tokens of each example, with one for its end."""
    texts = list(set(examples.values()))
    encoded = gpt2.encode_batch_fast(texts)
    return {text: [*each.ids, END] for text, each in zip(texts, encoded, strict=True)}


def is_whole(path):
    return path is not None and not any(fields["body"].strip() in GONE for fields in path)


def as_shown(body):
    """A body as a page showed it, in paragraphs."""
    for _ in range(2):
        # Word by word: html.unescape alone reads `&section=0`, in an address, as `§ion=0`.
        words = re.split(r"(&[#\w]+;)", body)
        words[1::2] = map(html.unescape, words[1::2])
        body = "".join(words)
    # One comment of this dump has a control character in it.
    *others, last = body.replace("\x05", "").replace("\r\n", "\n").split("\n")
    body = "\n".join([*(line.rstrip(" \t\xa0") for line in others), last])
    while "\n\n\n" in body:
        body = body.replace("\n\n\n", "\n\n")
    return body.strip()


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
    assert counts.below_missing == sum(path is None for path in paths.values()) == 396
    assert counts.whole == sum(is_whole(path) for path in paths.values()) == 10_341
    assert counts.below_removed == len(paths) - 396 - 10_341 == 970
    assert source.report.texts.threads == len({link for link, _ in comments}) == 3_811


def test_orphans_are_those_of_an_independent_count(source, comments):
    orphans = [
        fields
        for (link, _), fields in comments.items()
        if fields["parent_id"].startswith("t1_") and (link, fields["parent_id"]) not in comments
    ]
    assert source.report.comments.orphans == len(orphans) == 246
    # Six of them name a comment that is there, but in another thread, and was written later.
    known = {name: fields for (_, name), fields in comments.items()}
    elsewhere = [fields for fields in orphans if fields["parent_id"] in known]
    assert len(elsewhere) == 6
    for fields in elsewhere:
        assert known[fields["parent_id"]]["created_utc"] > fields["created_utc"]


def test_documents_are_the_paths_of_an_independent_reconstruction(source, documents, examples):
    assert sorted(document.text for document in documents) == sorted(examples.values())
    texts = source.report.texts
    assert texts.documents == source.report.comments.examples == len(examples) == 10_341
    assert texts.characters == sum(map(len, examples.values())) == 5_870_654


def test_splits_share_no_thread(source, documents, examples):
    threads = {}
    for (link, _), text in examples.items():
        threads.setdefault(text, set()).add(link)
    splits = {}
    for document in documents:
        # Nearly all texts occur in one thread only, and so tell where their thread is.
        if len(threads[document.text]) == 1:
            splits.setdefault(min(threads[document.text]), set()).add(document.split)
    assert len(splits) > 3_300
    assert all(len(each) == 1 for each in splits.values())
    counts = Counter(document.split for document in documents)
    assert {split: texts.documents for split, texts in source.report.splits.items()} == counts
    assert min(counts.values()) > 100


def test_other_forms_repeat_less(folder, paths, examples):
    inner = {
        (fields["link_id"], "t1_" + fields["id"]) for key in examples for fields in paths[key][:-1]
    }
    expected = {
        "paths": (len(examples), 2.13),
        "leaves": (len(examples.keys() - inner), 1.26),
        "threads": (len({link for link, _ in examples}), 1.01),
    }
    for form, (num_documents, repetition) in expected.items():
        options = RedditOptions(form=form)
        texts = RedditSource([DUMP], folder, options, num_workers=1).report.texts
        assert texts.documents == num_documents
        assert texts.characters / texts.distinct_characters == pytest.approx(repetition, abs=0.01)


def test_tokens_and_episodes_are_those_of_an_independent_count(source, examples, tokens, tmp_path):
    tokeniser = named_tokeniser(str(SHARED))
    corpus = prepare([Part(source=source)], tmp_path / "corpus", kind="reddit", tokeniser=tokeniser)
    splits = [corpus.split(name) for name in corpus.manifest.splits]
    lengths = [len(tokens[text]) for text in examples.values()]
    found = np.concatenate(
        [np.diff(split.document_starts.astype(np.int64), append=len(split)) for split in splits]
    )
    assert sorted(found) == sorted(lengths)
    assert sum(lengths) == 1_382_400
    # Episodes of 256 tokens, as the paper's appendix has them.
    assert sum(-(-length // 256) for length in lengths) == 12_847
