"""Threads are rebuilt as a slow and simple reconstruction has them, whatever is wrong with them."""

from collections import Counter
from itertools import product
from typing import get_args

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reddit_dumps import as_lines, comment, naive_paths, random_comments

from staircase_attention.data import HeldOut
from staircase_attention.data.reddit import RedditOptions
from staircase_attention.data.reddit.comments import parse_lines
from staircase_attention.data.reddit.source import WITH_TEXT, WITHOUT_TEXT
from staircase_attention.data.reddit.threads import SEPARATOR, Gap, documents, rebuild

GAPS = get_args(Gap)
GAP_PAIRS = st.tuples(st.sampled_from(GAPS), st.sampled_from(GAPS))


def write(comments, **choices):
    """The texts of all documents as lists of comments, and the counts."""
    options = RedditOptions(**choices)
    _, batch = parse_lines(as_lines(comments).splitlines(), options.cleaning)
    threads = list(rebuild(pa.Table.from_batches([batch]), options))
    written = [document for thread in threads for document in documents(thread, options)]
    counts = sum((thread.counts for thread in threads), Counter())
    return [each.text.split(SEPARATOR) for each in written], counts


@settings(max_examples=60)
@given(seed=st.integers(0, 10**6), size=st.integers(0, 120), gaps=GAP_PAIRS)
def test_every_form_equals_a_naive_reconstruction(seed, size, gaps):
    comments = random_comments(seed, size, num_threads=3)
    options = dict(zip(("removed", "missing"), gaps, strict=True))
    expected = naive_paths(comments, **options)
    paths, counts = write(comments, **options)
    assert sorted(paths) == sorted(expected.values())
    assert counts["examples"] == len(expected)
    distinct = {(fields["link_id"], fields["id"]) for fields in comments}
    assert sum(counts[kind] for kind in WITHOUT_TEXT + WITH_TEXT) == len(distinct)
    assert counts["threads"] == len({link for link, _ in distinct})
    assert counts["whole"] == len(naive_paths(comments))

    inner = {body for path in expected.values() for body in path[:-1]}
    leaves, _ = write(comments, **options, form="leaves")
    assert sorted(leaves) == sorted(path for path in expected.values() if path[-1] not in inner)

    threads, _ = write(comments, **options, form="threads")
    assert len(threads) == len({link for link, _ in expected})
    written = [body for thread in threads for body in thread if body.startswith("body")]
    assert sorted(written) == sorted(path[-1] for path in expected.values())
    place = {body: number for number, body in enumerate(written)}
    for path in expected.values():
        places = [place[body] for body in path if body.startswith("body")]
        assert places == sorted(places)


def test_a_thread_is_written_depth_first_and_siblings_by_time_then_id():
    comments = [
        comment("c1", created=50),
        comment("c2", created=10),
        comment("c10", "c1", created=70),
        comment("c9", "c1", created=70),
        comment("c4", "c9", created=99),
        comment("c5", "c1", created=60),
    ]
    ((*thread,),), _ = write(comments, form="threads")
    assert "".join(thread).replace("body of", "") == " c2 c1 c5 c9 c4 c10"
    paths, _ = write(comments)
    ends = "".join(path[-1] for path in paths)
    assert ends.replace("body of", "") == " c2 c1 c5 c9 c10 c4"


def test_the_order_of_lines_does_not_matter():
    comments = random_comments(3, 60)[:60]
    distinct = list({fields["id"]: fields for fields in comments}.values())
    assert write(distinct) == write(distinct[::-1])


def test_one_id_in_two_threads_is_two_comments():
    # As in the dump of January 2006: ids of comments that were lost had been given again.
    comments = [
        comment("c1", link="x1", created=90, body="later, elsewhere"),
        comment("c2", "c1", link="x2", created=10, body="an answer to what is lost"),
    ]
    paths, counts = write(comments, missing="cut")
    assert paths == [["later, elsewhere"], ["an answer to what is lost"]]
    assert counts["orphans"] == 1


def test_cycles_have_no_path_and_harm_nothing_else():
    comments = [
        comment("c1", "c1"),
        comment("c2", "c3"),
        comment("c3", "c2"),
        comment("c4", "c3"),
        comment("c5"),
        comment("c6", "c5"),
    ]
    for removed, missing in product(GAPS, GAPS):
        paths, counts = write(comments, removed=removed, missing=missing)
        assert [path[-1] for path in paths] == ["body of c5", "body of c6"]
        assert counts["in_cycles"] == 4


def test_a_chain_of_ten_thousand_needs_no_recursion():
    chain = [comment(f"{number + 1:x}", created=number, body="b") for number in range(10_000)]
    for child, parent in zip(chain[1:], chain, strict=False):
        child["parent_id"] = f"t1_{parent['id']}"
    ((*path,),), counts = write(chain, form="leaves")
    assert path == ["b"] * 10_000
    assert counts["whole"] == 10_000


def test_a_gap_is_dropped_or_cut_or_marked():
    comments = [
        comment("c1"),
        comment("c2", "c1", body="[deleted]"),
        comment("c3", "c2"),
        comment("c4", "gone"),
        comment("c5", "c4"),
    ]
    top, below, orphan, last = ([f"body of {name}"] for name in ("c1", "c3", "c4", "c5"))
    assert write(comments)[0] == [top]
    assert write(comments, removed="cut", missing="cut")[0] == [top, below, orphan, orphan + last]
    assert write(comments, removed="placeholder", missing="placeholder")[0] == [
        top,
        [*top, "[removed]", *below],
        ["[missing]", *orphan],
        ["[missing]", *orphan, *last],
    ]
    counts = write(comments)[1]
    assert (counts["deleted"], counts["orphans"]) == (1, 1)
    assert [counts[kind] for kind in WITH_TEXT] == [1, 1, 2, 0]


def test_speakers_have_marks_in_the_order_of_appearance():
    chain = [
        comment("c1", author="ann"),
        comment("c2", "c1", author="bob"),
        comment("c3", "c2", author="[deleted]"),
        comment("c4", "c3", author="ann"),
    ]
    paths, _ = write(chain, speakers=True)
    assert paths[-1] == ["A: body of c1", "B: body of c2", "?: body of c3", "A: body of c4"]


def test_fractions_of_threads_are_held_out():
    options = RedditOptions(held_out=HeldOut(valid=0.1, test=0.2))
    splits = [options.split_of(thread) for thread in range(20_000)]
    assert abs(splits.count("valid") / 20_000 - 0.1) < 0.01
    assert abs(splits.count("test") / 20_000 - 0.2) < 0.01
    nothing = RedditOptions(held_out=HeldOut(valid=0, test=0))
    assert {nothing.split_of(thread) for thread in range(100)} == {"train"}


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"form": "tree"}, "form must be one of paths, leaves, threads, got 'tree'"),
        ({"removed": "keep"}, "removed must be one of drop, cut, placeholder"),
        ({"maximum_depth": 0}, "use for example maximum_depth=7"),
    ],
)
def test_invalid_options_are_refused_with_a_remedy(choice, message):
    with pytest.raises(ValueError, match=message):
        RedditOptions(**choice)
