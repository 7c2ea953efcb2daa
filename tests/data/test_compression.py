"""Every kind of compressed file gives its content, from any offset, up to any damage."""

import sys

import pytest
from small_corpora import compressed

from staircase_attention.checks import import_extra
from staircase_attention.data import InputError, compression
from staircase_attention.data.compression import (
    DamagedFileError,
    compression_of,
    open_decompressed,
)

KINDS = ("plain", "gz", "bz2", "xz", "zst", "zip")
TEXT = b"".join(b"%x\n" % pow(3, number, 1 << 255) for number in range(300, 6_000))


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks so small that every test text has many."""
    monkeypatch.setattr(compression, "BLOCK_BYTES", 64)
    monkeypatch.setattr(compression, "ZST_INPUT_BYTES", 16)


def write(folder, data):
    path = folder / "misleading.txt"
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("kind", KINDS)
def test_compression_is_known_by_content_and_not_by_name(kind, tmp_path, small_blocks):
    path = write(tmp_path, compressed(TEXT, kind))
    assert compression_of(path) == (None if kind == "plain" else kind)
    with open_decompressed(path) as file:
        assert file.read() == TEXT
        assert 0.9 < file.raw.num_stored_read / path.stat().st_size <= 1
    with open_decompressed(path) as file:
        assert list(file) == TEXT.splitlines(keepends=True)


@pytest.mark.parametrize("kind", ["gz", "bz2", "xz", "zst"])
def test_files_joined_after_compression_are_read_to_the_end(kind, tmp_path):
    path = write(tmp_path, compressed(b"one ", kind) + compressed(b"two", kind))
    assert open_decompressed(path).read() == b"one two"


def read_all(path, found):
    with open_decompressed(path) as file:
        while data := file.read(1_000):
            found += data


@pytest.mark.parametrize("kind", ["gz", "bz2", "xz", "zst", "zip"])
@pytest.mark.parametrize("damage", ["cut", "garbled"])
def test_damage_is_one_line_after_all_that_can_be_read(kind, damage, tmp_path):
    data = bytearray(compressed(TEXT, kind))
    if damage == "cut":
        del data[-60:]
    else:
        data[-200:-180] = bytes(20)
    path = write(tmp_path, data)
    found = bytearray()
    with pytest.raises(DamagedFileError, match=r"a file must be whole, got .*misl") as refused:
        read_all(path, found)
    assert "\n" not in str(refused.value)
    # A zip is not opened without its end, and bzip2 decompresses 900,000 bytes at once.
    if kind in ("gz", "xz", "zst"):
        assert TEXT.startswith(found[: len(TEXT) // 2])
        assert len(found) >= len(TEXT) // 2


def test_a_zip_holds_one_file_and_a_missing_package_is_named(tmp_path, monkeypatch):
    path = write(tmp_path, b"PK\x03\x04PK\x05\x06" + bytes(18))
    with pytest.raises(InputError, match=r"a \.zip must hold one file, got 0 in"):
        open_decompressed(path)
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(InputError, match=r"needs the package zstandard, got none installed; run"):
        open_decompressed(write(tmp_path, b"\x28\xb5\x2f\xfd1234"))
    with pytest.raises(InputError, match=r"staircase-attention\[corpora\]"):
        import_extra("no_such_package.at_all", needed_for="this")
    with pytest.raises(FileNotFoundError):
        open_decompressed(tmp_path / "nowhere")


def test_a_zstandard_window_of_2_gib_is_read_and_a_larger_one_refused(tmp_path):
    pytest.importorskip("zstandard")
    # Magic bytes, descriptor, window of 2 to the power of 10 + 21, one last raw block of 5 bytes.
    frame = b"\x28\xb5\x2f\xfd\x00" + bytes([21 << 3]) + b"\x29\x00\x00hello"
    assert open_decompressed(write(tmp_path, frame)).read() == b"hello"
    larger = frame.replace(bytes([21 << 3]), bytes([22 << 3]))
    with pytest.raises(DamagedFileError, match="too much memory"):
        open_decompressed(write(tmp_path, larger)).read()
