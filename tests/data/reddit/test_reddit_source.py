"""A source gives the same documents from the same dumps, whatever the files and processes."""

import itertools
import json
import types
from collections import Counter
from dataclasses import asdict

import pytest
from reddit_dumps import as_lines, comment, naive_paths, random_comments, write_dump
from small_corpora import RecordedProgress

from staircase_attention.data import Cursor, HeldOut
from staircase_attention.data.reddit import RedditOptions, RedditSource, partitions
from staircase_attention.data.reddit import source as source_module


@pytest.fixture
def commits(monkeypatch):
    """Small batches of lines and small commits; the number of comments in each commit."""
    monkeypatch.setattr(partitions, "BLOCK_BYTES", 700)
    monkeypatch.setattr(partitions, "BUFFER_BYTES", 2_000)
    sizes = []
    original = partitions.Partitions.commit

    def commit(self, batches, *arguments):
        sizes.append(sum(map(len, batches)))
        original(self, batches, *arguments)

    monkeypatch.setattr(partitions.Partitions, "commit", commit)
    return sizes


def everything(source):
    """All that a source gives."""
    return list(source.documents(None)), source.report


def documents(source):
    return [document for document, _ in source.documents(None)]


def test_every_path_is_given_once_and_no_thread_is_in_two_splits(tmp_path):
    comments = random_comments(1, 600, num_threads=40)
    options = RedditOptions(held_out=HeldOut(valid=0.3, test=0.3))
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
def test_files_processes_and_memory_change_nothing(tmp_path, commits, num_workers):
    comments = random_comments(2, 300)
    whole = write_dump(tmp_path / "whole", comments)
    expected = RedditSource([whole], tmp_path / "work1", num_workers=1)
    parts = [
        write_dump(tmp_path / f"part-{kind}", comments[number::4], kind)
        for number, kind in enumerate(("plain", "gz", "xz", "zst"))
    ]
    source = RedditSource(parts, tmp_path / "work2", num_workers=num_workers)
    assert documents(source) == documents(expected)
    assert source.report.comments == expected.report.comments
    assert source.report.splits == expected.report.splits
    assert source.report.lines == expected.report.lines
    assert len(commits) > 10


def test_comments_are_stored_in_time_though_they_are_few(tmp_path, commits, monkeypatch):
    monkeypatch.setattr(partitions, "BUFFER_BYTES", 1 << 30)
    dump = write_dump(tmp_path / "dump", random_comments(2, 300))
    expected = everything(RedditSource([dump], tmp_path / "work1", num_workers=1))
    assert len(commits) == 1
    slow = types.SimpleNamespace(monotonic=itertools.count(step=4).__next__)
    monkeypatch.setattr(partitions, "time", slow)
    assert everything(RedditSource([dump], tmp_path / "work2", num_workers=1)) == expected
    assert len(commits) > 5


def test_of_equal_ids_the_one_in_the_first_file_is_kept(tmp_path, commits):
    dumps = [
        write_dump(tmp_path / name, [comment(f"c{n}", body=f"{n} in {name}") for n in range(40)])
        for name in ("third", "first", "second")
    ]
    source = RedditSource(dumps, tmp_path / "work", num_workers=2)
    assert {document.text for document in documents(source)} == {f"{n} in third" for n in range(40)}
    assert source.report.comments.duplicates == 80


def test_a_partition_that_is_too_large_is_processed_in_parts(tmp_path, monkeypatch):
    dump = write_dump(tmp_path / "dump", random_comments(3, 400, num_threads=60))
    whole = RedditSource([dump], tmp_path / "work1", num_workers=1)
    expected = documents(whole)
    monkeypatch.setattr(source_module, "LARGEST_GROUP_BYTES", 600)
    parts = RedditSource([dump], tmp_path / "work2", num_workers=1)
    found = documents(parts)
    assert len(parts._prepared[1]) > len(whole._prepared[1])
    assert sorted(each.text for each in found) == sorted(each.text for each in expected)
    assert parts.report == whole.report
    monkeypatch.setattr(partitions, "BLOCK_BYTES", 700)
    monkeypatch.setattr(partitions, "BUFFER_BYTES", 700)
    assert documents(RedditSource([dump], tmp_path / "work3", num_workers=1)) == found


def test_a_cursor_resumes_where_it_was_taken(tmp_path):
    dump = write_dump(tmp_path / "dump", random_comments(4, 200))
    source = RedditSource([dump], tmp_path / "work", num_workers=1)
    pairs = list(source.documents(None))
    for number in range(0, len(pairs), 7):
        stored = json.dumps(asdict(pairs[number][1]))
        again = RedditSource([dump], tmp_path / "work", num_workers=1)
        cursor = Cursor(**json.loads(stored))
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
    bodies = Counter(
        "bot" if body.startswith("body") and fields["author"] == "AutoModerator" else body
        for fields in distinct.values()
        for body in [fields["body"].strip()]
    )
    counts = report.comments
    found = [counts.deleted, counts.removed, counts.empty, counts.bots]
    assert found == [bodies[body] for body in ("[deleted]", "[removed]", "", "bot")]
    assert report.texts.threads == len({fields["link_id"] for fields in comments})
    assert report.skipped()["broken lines in dump"] == report.lines.broken == 10


def test_a_dump_may_be_damaged_or_without_a_comment(tmp_path):
    whole = write_dump(tmp_path / "whole.gz", [comment("c1")], "gz")
    damaged = write_dump(tmp_path / "damaged.gz", [comment("c2")], "gz")
    damaged.write_bytes(damaged.read_bytes()[:-12])
    source = RedditSource([damaged, whole], tmp_path / "work", num_workers=1)
    assert "body of c1" in [document.text for document in documents(source)]
    assert list(source.report.damage) == [str(damaged)]
    write_dump(whole, b"\n\nnothing\n")
    given, report = everything(RedditSource([whole], tmp_path / "work", num_workers=1))
    assert (given, report.lines.lines) == ([], 3)


def test_other_options_use_the_same_partitions_and_other_dumps_others(tmp_path):
    dump = write_dump(tmp_path / "dump", random_comments(7, 50))
    first = RedditSource([dump], tmp_path / "work", num_workers=1)
    expected = everything(first)
    files = [path for path in (tmp_path / "work").rglob("*") if path.is_file()]
    times = [path.stat().st_mtime_ns for path in files]
    said = []
    for options in (RedditOptions(form="leaves"), RedditOptions(), RedditOptions(speakers=True)):
        watcher = RecordedProgress()
        source = RedditSource([dump], tmp_path / "work", options, num_workers=1, progress=watcher)
        assert source.report.comments == first.report.comments
        said.append(watcher.said)
    assert said == [["rebuilding the threads"], [], ["rebuilding the threads"]]
    assert [path.stat().st_mtime_ns for path in files] == times
    write_dump(dump, random_comments(8, 50))
    changed = everything(RedditSource([dump], tmp_path / "work", num_workers=1))
    assert changed == everything(RedditSource([dump], tmp_path / "fresh", num_workers=1))
    assert changed != expected


@pytest.mark.parametrize("num_workers", [1, 2])
def test_progress_reaches_its_end_also_after_a_stop(tmp_path, commits, num_workers):
    dumps = [
        write_dump(tmp_path / "first.xz", random_comments(9, 200), "xz"),
        write_dump(tmp_path / "second.gz", random_comments(10, 100), "gz"),
    ]

    def stop(num_told):
        if num_told == 20:
            raise KeyboardInterrupt

    def source(watcher):
        return RedditSource(dumps, tmp_path / "work", num_workers=num_workers, progress=watcher)

    with pytest.raises(KeyboardInterrupt):
        source(RecordedProgress(stop)).report  # noqa: B018
    resumed = source(RecordedProgress())
    assert resumed.report
    assert resumed.progress.said == ["reading the dumps", "rebuilding the threads"]
    # Each stage starts with its total, and its last report reaches it.
    reports = [report for report in resumed.progress.reports if report[0] != "say"]
    totals = [report[1] for report in reports if report[0] == "begin"]
    second = max(number for number, report in enumerate(reports) if report[0] == "begin")
    assert [reports[second - 1][1], reports[-1][1]] == totals
    assert totals[0] == resumed.total_bytes


def test_two_preparations_may_not_share_a_folder(tmp_path):
    dump = write_dump(tmp_path / "dump", [comment("c1")])
    other = RedditSource([dump], tmp_path / "work", num_workers=1)

    def intrude(_):
        with pytest.raises(ValueError, match="used by one process at a time, got two for"):
            other.report  # noqa: B018

    watcher = RecordedProgress(intrude)
    assert RedditSource([dump], tmp_path / "work", num_workers=1, progress=watcher).report
    assert watcher.num_advances > 0


def test_invalid_paths_are_refused_with_a_remedy(tmp_path):
    with pytest.raises(ValueError, match=r"a dump must be a file, got .*nowhere; check"):
        RedditSource([tmp_path / "nowhere"], tmp_path)
    with pytest.raises(ValueError, match="paths must be a list of one dump or more"):
        RedditSource("dump.zst", tmp_path)
    dump = write_dump(tmp_path / "dump", [comment("c1")])
    with pytest.raises(ValueError, match="num_workers must be an integer of at least 1"):
        RedditSource([dump], tmp_path, num_workers=0)
