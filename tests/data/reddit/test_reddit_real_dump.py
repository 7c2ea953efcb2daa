"""The real dump of December 2005 to February 2006, counted twice."""

import numpy as np
import pytest
from small_corpora import REAL, counted_again

from staircase_attention.data import HeldOut, Part, named_tokeniser, prepare
from staircase_attention.data.reddit import RedditOptions, RedditSource

DUMP = REAL / "RC_2005-12_2006-02.jsonl.xz"
pytestmark = pytest.mark.skipif(not DUMP.exists(), reason=f"needs the real dump, {DUMP}")

KNOWN = {
    "lines": 13_836,
    "comments in": 13_836,
    "broken lines": 0,
    "duplicates": 0,
    "deleted": 1_913,
    "removed": 215,
    "empty": 1,
    "with a text, no whole path": 396 + 970,
    "examples": 10_341,
}


def source_of(folder, **options):
    return RedditSource([DUMP], folder, RedditOptions(**options), num_workers=1)


def test_documents_and_counts_are_those_of_an_independent_reconstruction(tmp_path):
    """Lines, comments, paths, their tokens, and that no thread is in two splits."""
    held_out = HeldOut(valid=0.05, test=0.05)
    source = source_of(tmp_path / "corpus.threads", held_out=held_out)
    tokeniser = named_tokeniser(str(REAL))
    corpus = prepare([Part(source=source)], tmp_path / "corpus", kind="reddit", tokeniser=tokeniser)
    table = counted_again("reddit", corpus, DUMP)
    for what, count in KNOWN.items():
        assert f"| {what} | {count:,} | {count:,} |" in table
    lengths = []
    for name in corpus.splits:
        split = corpus.split(name)
        lengths += np.diff(split.document_starts.astype(np.int64), append=split.num_tokens).tolist()
    assert sum(lengths) == 1_382_400
    # Episodes of 256 tokens, as the paper's appendix has them.
    assert sum(-(-length // 256) for length in lengths) == 12_847


@pytest.mark.parametrize(
    ("form", "num_documents", "num_characters"),
    [("paths", 10_341, 5_870_654), ("leaves", 7_408, 3_459_940)],
)
def test_other_forms_repeat_less(form, num_documents, num_characters, tmp_path):
    texts = [each.text for each, _ in source_of(tmp_path, form=form).documents() if each.text]
    assert (len(texts), sum(map(len, texts))) == (num_documents, num_characters)
