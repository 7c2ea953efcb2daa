"""A source gives the same documents from the same dumps, however they come and are worked on."""

import itertools
import json
import types
from dataclasses import asdict

import pytest
from reddit_dumps import (
    COMPRESSORS,
    Watcher,
    as_lines,
    comment,
    naive_paths,
    random_comments,
    write_dump,
)

from staircase_attention.data.document import Cursor
from staircase_attention.data.reddit import (
    Fractions,
    Limits,
    RedditOptions,
    RedditSource,
    archives,
    scatter,
)
from staircase_attention.data.reddit.work_folder import sole_use


@pytest.fixture
def small_blocks(monkeypatch):
    """Many batches of a few lines."""
    monkeypatch.setattr(archives, "BLOCK_BYTES", 700)
    monkeypatch.setattr(archives, "PIECE_BYTES", 200)


def everything(source):
    """All that a source gives."""
    return list(source.documents(None)), source.report.as_plain()


def documents(source):
    return [document for document, _ in source.documents(None)]


def test_every_path_is_given_once_and_no_thread_is_in_two_splits(tmp_path):
    comments = random_comments(1, 600, num_threads=40)
    options = RedditOptions(fractions=Fractions(valid=0.3, test=0.3))
    dump = write_dump(tmp_path / "dump", comments)
    given = documents(RedditSource([dump], tmp_path / "work", options, num_workers=1))
    expected = naive_paths(comments)
    texts = sorted(document.text for document in given)
    assert texts == sorted("\n\n\n".join(path) for path in expected.values())
    thread_of = {path[-1]: link for (link, _), path in expected.items()}
    splits = {}
    for document in given:
        last = document.text.split("\n\n\n")[-1]
        splits.setdefault(thread_of[last], set()).add(document.split)
    assert all(len(each) == 1 for each in splits.values())
    assert set.union(*splits.values()) == {"train", "valid", "test"}


@pytest.mark.parametrize("num_workers", [1, 2])
def test_files_processes_and_memory_change_nothing(tmp_path, small_blocks, num_workers):
    comments = random_comments(2, 300)
    whole = write_dump(tmp_path / "whole", comments)
    expected = RedditSource([whole], tmp_path / "work1", num_workers=1)
    size = len(comments) // len(COMPRESSORS) + 1
    parts = [
        write_dump(tmp_path / f"part-{kind}", comments[first : first + size], kind)
        for first, kind in zip(range(0, len(comments), size), COMPRESSORS, strict=True)
    ]
    limits = Limits(run_bytes=2_000)
    source = RedditSource(parts, tmp_path / "work2", num_workers=num_workers, limits=limits)
    assert documents(source) == documents(expected)
    assert source.report.comments == expected.report.comments
    assert source.report.splits == expected.report.splits
    assert source.report.lines == expected.report.lines
    assert len(list((tmp_path / "work2" / "runs").glob("*.run"))) > 5


def test_comments_are_written_in_time_though_they_are_few(tmp_path, small_blocks, monkeypatch):
    dump = write_dump(tmp_path / "dump", random_comments(2, 300))
    expected = RedditSource([dump], tmp_path / "work1", num_workers=1)
    assert len(everything(expected)[0]) > 0
    assert len(list((tmp_path / "work1" / "runs").glob("*.run"))) == 1
    slow = types.SimpleNamespace(monotonic=itertools.count(step=4).__next__)
    monkeypatch.setattr(scatter, "time", slow)
    source = RedditSource([dump], tmp_path / "work2", num_workers=1)
    assert everything(source) == everything(expected)
    assert len(list((tmp_path / "work2" / "runs").glob("*.run"))) > 5


@pytest.mark.parametrize("num_workers", [1, 2])
def test_of_equal_ids_the_one_in_the_first_file_is_kept(tmp_path, small_blocks, num_workers):
    names = ["third", "first", "second"]
    dumps = [
        write_dump(tmp_path / name, [comment(f"c{n}", body=f"{n} in {name}") for n in range(40)])
        for name in names
    ]
    limits = Limits(run_bytes=500)
    source = RedditSource(dumps, tmp_path / "work", num_workers=num_workers, limits=limits)
    assert sorted(document.text for document in documents(source)) == sorted(
        f"{n} in third" for n in range(40)
    )
    assert source.report.comments.duplicates == 80


def test_a_bucket_that_is_too_large_is_taken_in_parts(tmp_path):
    dump = write_dump(tmp_path / "dump", random_comments(3, 400, num_threads=60))
    whole = RedditSource([dump], tmp_path / "work1", num_workers=1)
    limits = Limits(largest_group_bytes=600)
    parts = RedditSource([dump], tmp_path / "work2", num_workers=1, limits=limits)
    assert len(parts._prepared.groups) > len(whole._prepared.groups)
    texts = [[document.text for document in documents(source)] for source in (parts, whole)]
    assert sorted(texts[0]) == sorted(texts[1])
    assert parts.report == whole.report


def test_a_cursor_goes_on_where_it_was_taken(tmp_path):
    dump = write_dump(tmp_path / "dump", random_comments(4, 200))
    source = RedditSource([dump], tmp_path / "work", num_workers=1)
    pairs = list(source.documents(None))
    for number in range(0, len(pairs), 7):
        stored = json.dumps(pairs[number][1].as_plain())
        again = RedditSource([dump], tmp_path / "work", num_workers=1)
        cursor = Cursor.from_plain(json.loads(stored))
        assert list(again.documents(cursor)) == pairs[number + 1 :]
    reads = [cursor.num_read for _, cursor in pairs]
    assert reads == sorted(reads)
    assert reads[-1] == source.total_bytes == dump.stat().st_size


def test_every_line_and_every_comment_is_counted_once(tmp_path):
    comments = random_comments(5, 300)
    lines = as_lines(comments).splitlines()
    oddities = {
        "blank": [b"", b"  "],
        "not_json": [lines[0][:-9], b"\x00\x00", b"not at all"],
        "not_text": [lines[1].replace(b"body", b"b\xe9dy")],
        "not_object": [b"[]", b"null", b"3"],
        "incomplete": [b"{}", json.dumps({"id": "a", "title": "a post"}).encode()],
    }
    for number, odd in enumerate([line for each in oddities.values() for line in each]):
        lines.insert(20 * number, odd)
    # The last line is cut short.
    dump = write_dump(tmp_path / "dump", b"\n".join(lines) + b"\n" + lines[-1][:40])
    report = RedditSource([dump], tmp_path / "work", num_workers=1).report
    found = asdict(report.lines)
    assert {name: found[name] for name in oddities} == {
        name: len(odd) + (name == "not_json") for name, odd in oddities.items()
    }
    assert report.lines.lines == len(lines) + 1
    assert report.lines.comments == report.comments.comments == len(comments)
    distinct = {(fields["link_id"], fields["id"]): fields for fields in reversed(comments)}
    assert report.comments.duplicates == len(comments) - len(distinct)
    bodies = [fields["body"].strip() for fields in distinct.values()]
    assert report.comments.deleted == bodies.count("[deleted]")
    assert report.comments.removed == bodies.count("[removed]")
    assert report.comments.empty == bodies.count("")
    assert report.comments.bots == sum(
        fields["author"] == "AutoModerator" and body.startswith("body")
        for fields, body in zip(distinct.values(), bodies, strict=True)
    )
    assert report.texts.threads == len({fields["link_id"] for fields in comments})
    assert report.skipped()["broken lines in dump"] == report.lines.broken == 10


def test_a_damaged_dump_is_reported_and_the_others_are_read(tmp_path):
    whole = write_dump(tmp_path / "whole.gz", [comment("c1")], "gz")
    damaged = write_dump(tmp_path / "damaged.gz", [comment("c2")], "gz")
    damaged.write_bytes(damaged.read_bytes()[:-12])
    source = RedditSource([damaged, whole], tmp_path / "work", num_workers=1)
    assert "body of c1" in [document.text for document in documents(source)]
    assert list(source.report.damage) == [str(damaged)]


def test_a_thread_keeps_its_split_when_dumps_are_added(tmp_path):
    comments = random_comments(6, 400, num_threads=80)
    first = write_dump(tmp_path / "first", comments[:200])
    second = write_dump(tmp_path / "second", comments[200:])
    # Kept whatever their path, so that both have the same texts.
    options = RedditOptions(removed="cut", missing="cut", fractions=Fractions(valid=0.2, test=0.2))
    splits = [
        {document.text.split("\n\n\n")[-1]: document.split for document in documents(source)}
        for source in (
            RedditSource([first], tmp_path / "work1", options, num_workers=1),
            RedditSource([first, second], tmp_path / "work2", options, num_workers=1),
        )
    ]
    assert splits[0].items() <= splits[1].items()


def test_fractions_are_kept_and_seeds_differ():
    fractions = Fractions(valid=0.1, test=0.2)
    splits = [fractions.split_of(thread) for thread in range(20_000)]
    assert abs(splits.count("valid") / 20_000 - 0.1) < 0.01
    assert abs(splits.count("test") / 20_000 - 0.2) < 0.01
    assert splits != [Fractions(valid=0.1, test=0.2, seed=1).split_of(t) for t in range(20_000)]
    assert {Fractions(valid=0, test=0).split_of(thread) for thread in range(100)} == {"train"}
    with pytest.raises(ValueError, match="valid and test must be fractions"):
        Fractions(valid=0.6, test=0.6)


def test_other_options_use_the_same_runs_and_another_cleaning_may_not(tmp_path):
    dump = write_dump(tmp_path / "dump", random_comments(7, 50))
    watcher = Watcher()
    RedditSource([dump], tmp_path / "work", num_workers=1).report  # noqa: B018
    leaves = RedditSource(
        [dump],
        tmp_path / "work",
        RedditOptions(form="leaves"),
        num_workers=1,
        progress=watcher,
    )
    assert 0 < leaves.report.texts.documents < leaves.report.comments.examples
    assert watcher.said == ["rebuilding the threads"]
    write_dump(dump, random_comments(8, 50))
    with pytest.raises(ValueError, match="must be used with the same dumps as before"):
        RedditSource([dump], tmp_path / "work", num_workers=1).report  # noqa: B018


@pytest.mark.parametrize("num_workers", [1, 2])
def test_progress_reaches_its_end_also_after_a_stop(tmp_path, small_blocks, num_workers):
    dumps = [
        write_dump(tmp_path / "first.xz", random_comments(9, 200), "xz"),
        write_dump(tmp_path / "second.gz", random_comments(10, 100), "gz"),
    ]

    def stop(num_told):
        if num_told == 20:
            raise KeyboardInterrupt

    choices = {"num_workers": num_workers, "limits": Limits(run_bytes=1_000)}
    watcher = Watcher(stop)
    with pytest.raises(KeyboardInterrupt):
        RedditSource(dumps, tmp_path / "work", progress=watcher, **choices).report  # noqa: B018
    source = RedditSource(dumps, tmp_path / "work", progress=Watcher(), **choices)
    assert source.report
    assert source.progress.said == ["reading the dumps", "rebuilding the threads"]
    assert source.progress.totals[0] == source.total_bytes
    assert source.progress.done == source.progress.totals


def test_a_dump_whose_last_run_is_empty_may_be_followed_by_a_stop(tmp_path, small_blocks):
    """Runs of one batch each: when the dump ends, nothing is left for its last run."""
    comments = random_comments(11, 60)
    dumps = [
        write_dump(tmp_path / "first", comments[:30]),
        write_dump(tmp_path / "second", comments[30:]),
    ]
    limits = Limits(run_bytes=1)

    def stop_in_the_second(_):
        if list((tmp_path / "work" / "runs").glob("00001-*.json")):
            raise KeyboardInterrupt

    watcher = Watcher(stop_in_the_second)
    with pytest.raises(KeyboardInterrupt):
        RedditSource(  # noqa: B018
            dumps, tmp_path / "work", progress=watcher, num_workers=1, limits=limits
        ).report
    last_of_first = max((tmp_path / "work" / "runs").glob("00000-*.json"))
    assert json.loads(last_of_first.read_text())["lines"] == {}
    source = RedditSource(dumps, tmp_path / "work", num_workers=1, limits=limits)
    whole = RedditSource(dumps, tmp_path / "work2", num_workers=1)
    assert everything(source) == everything(whole)


def test_two_preparations_may_not_share_a_folder(tmp_path):
    dump = write_dump(tmp_path / "dump", [comment("c1")])
    folder = tmp_path / "work"
    folder.mkdir()
    with sole_use(folder), pytest.raises(ValueError, match="one preparation at a time"):
        RedditSource([dump], folder, num_workers=1).report  # noqa: B018


def test_what_cannot_be_read_is_refused_with_a_way_out(tmp_path):
    with pytest.raises(ValueError, match=r"a dump must be a file, got .*nowhere; check"):
        RedditSource([tmp_path / "nowhere"], tmp_path)
    with pytest.raises(ValueError, match="paths must be a list of one dump or more"):
        RedditSource("dump.zst", tmp_path)
    dump = write_dump(tmp_path / "dump", [comment("c1")])
    with pytest.raises(ValueError, match="num_workers must be a whole number of at least 1"):
        RedditSource([dump], tmp_path, num_workers=0)
    source = RedditSource([dump], tmp_path / "work", num_workers=1)
    with pytest.raises(ValueError, match="a cursor must be a place in the source"):
        next(source.documents(Cursor(place={"line": 3}, num_read=0)))


def test_dumps_without_a_comment_give_no_document(tmp_path):
    dump = write_dump(tmp_path / "dump", b"\n\nnothing\n")
    given, report = everything(RedditSource([dump], tmp_path / "work", num_workers=1))
    assert given == []
    assert report["lines"]["lines"] == 3
