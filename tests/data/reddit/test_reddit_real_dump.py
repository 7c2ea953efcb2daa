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
    "orphans": 246,
    "with a text, below a missing one": 396,
    "with a text, below a removed one": 970,
    "examples": 10_341,
    "threads": 3_811,
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
    assert source.report.texts.characters == 5_870_654
    # Authors are hashes in this copy, so that no name tells a bot.
    assert source.report.comments.bots == 0
    lengths = []
    for name in corpus.splits:
        split = corpus.split(name)
        lengths += np.diff(split.document_starts.astype(np.int64), append=len(split)).tolist()
    assert sum(lengths) == 1_382_400
    # Episodes of 256 tokens, as the paper's appendix has them.
    assert sum(-(-length // 256) for length in lengths) == 12_847


@pytest.mark.parametrize(
    ("form", "num_documents", "repetition"),
    [("paths", 10_341, 2.13), ("leaves", 7_408, 1.26), ("threads", 3_399, 1.01)],
)
def test_other_forms_repeat_less(form, num_documents, repetition, tmp_path):
    texts = source_of(tmp_path, form=form).report.texts
    assert texts.documents == num_documents
    assert texts.characters / texts.distinct_characters == pytest.approx(repetition, abs=0.01)
