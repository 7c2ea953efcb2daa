"""Whole files: never torn, whoever else writes them, and nothing left of what failed."""

import threading

import pytest

from staircase_attention.files import read_json, write_json, write_whole


def test_several_who_write_one_file_leave_one_of_theirs_whole(tmp_path):
    path, torn = tmp_path / "file", []

    def write(number):
        for _ in range(30):
            write_whole(path, bytes([number]) * 20_000)
            content = path.read_bytes()
            if len(content) != 20_000 or len(set(content)) != 1:
                torn.append(content)

    threads = [threading.Thread(target=write, args=[number]) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not torn
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_what_fails_leaves_the_old_file_and_no_other(tmp_path):
    path = tmp_path / "file.json"
    write_json(path, {"a": 1})
    with pytest.raises(TypeError):
        write_whole(path, b"new", "no bytes")
    assert read_json(path) == {"a": 1}
    assert list(tmp_path.iterdir()) == [path]
