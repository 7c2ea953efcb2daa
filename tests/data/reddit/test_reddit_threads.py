"""Threads are rebuilt as a slow and simple reconstruction has them, whatever is wrong with them."""

from collections import Counter
from typing import get_args

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reddit_dumps import as_lines, comment, naive_paths, random_comments

from staircase_attention.data import HeldOut
from staircase_attention.data.reddit import (
    SEPARATOR,
    DumpPosition,
    Gap,
    RedditOptions,
    parse_lines,
    texts_of,
    threads,
)

GAPS = get_args(Gap)


def write(comments, **choices):
    """The texts of all documents as lists of comments, and the counts of all other comments."""
    options, paths, counts = RedditOptions(**choices), [], Counter()
    _, batch = parse_lines((as_lines(comments).splitlines(), DumpPosition()), options)
    for rows in threads(pa.Table.from_batches([batch])):
        texts, skipped = texts_of(rows, options)
        paths += [text.split(SEPARATOR) for text in texts]
        counts.update(skipped)
    return paths, +counts


@settings(max_examples=60)
@given(
    seed=st.integers(0, 10**6),
    size=st.integers(0, 120),
    depth=st.integers(1, 12),
    removed=st.sampled_from(GAPS),
    missing=st.sampled_from(GAPS),
)
def test_every_form_equals_a_naive_reconstruction(seed, size, depth, removed, missing):
    comments = random_comments(seed, size, num_threads=3)
    gaps = {"removed": removed, "missing": missing}
    expected = [path for path in naive_paths(comments, **gaps).values() if len(path) <= depth]
    paths, counts = write(comments, maximum_depth=depth, **gaps)
    assert sorted(paths) == sorted(expected)
    distinct = {(fields["link_id"], fields["id"]) for fields in comments}
    assert counts.total() + len(expected) == len(distinct)
    inner = {body for path in expected for body in path[:-1]}
    leaves, _ = write(comments, maximum_depth=depth, form="leaves", **gaps)
    assert sorted(leaves) == sorted(path for path in expected if path[-1] not in inner)


def test_paths_come_in_the_order_of_their_last_comments_by_time_then_id():
    comments = [
        comment("c1", created=50),
        comment("c2", created=10),
        comment("c10", "c1", created=70),
        comment("c9", "c1", created=70),
        comment("c4", "c9", created=99),
        comment("c5", "c1", created=60),
    ]
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
    assert write(comments) == ([["later, elsewhere"]], {"no whole path": 1})


def test_cycles_have_no_path_and_harm_nothing_else():
    comments = [
        comment("c1", "c1"),
        comment("c2", "c3"),
        comment("c3", "c2"),
        comment("c4", "c3"),
        comment("c5"),
        comment("c6", "c5"),
    ]
    paths, counts = write(comments)
    assert [path[-1] for path in paths] == ["body of c5", "body of c6"]
    assert counts == {"no whole path": 4}


def test_a_chain_of_ten_thousand_needs_no_recursion():
    chain = [comment(f"{number + 1:x}", created=number, body="b") for number in range(10_000)]
    for child, parent in zip(chain[1:], chain, strict=False):
        child["parent_id"] = f"t1_{parent['id']}"
    assert write(chain, form="leaves") == ([["b"] * 10_000], {})


def test_a_gap_is_dropped_or_cut_or_marked():
    comments = [
        comment("c1"),
        comment("c2", "c1", body="[deleted]"),
        comment("c3", "c2"),
        comment("c4", "gone"),
        comment("c5", "c4"),
    ]
    top, below, orphan, last = ([f"body of {name}"] for name in ("c1", "c3", "c4", "c5"))
    assert write(comments) == ([top], {"deleted": 1, "no whole path": 3})
    assert write(comments, removed="cut", missing="cut")[0] == [top, below, orphan, orphan + last]
    assert write(comments, removed="placeholder", missing="placeholder")[0] == [
        top,
        [*top, "[removed]", *below],
        ["[missing]", *orphan],
        ["[missing]", *orphan, *last],
    ]


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
        ({"form": "tree"}, "form must be one of paths, leaves, got 'tree'"),
        ({"maximum_depth": 0}, "use for example maximum_depth=7"),
    ],
)
def test_invalid_options_are_refused_with_a_remedy(choice, message):
    with pytest.raises(ValueError, match=message):
        RedditOptions(**choice)
