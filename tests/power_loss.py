"""A disk that loses power: records what a program does to files, and builds what may be left.

What has not been synced may be lost, each operation on its own and in any order: 4 KiB pages of a
file's content until the file is synced, names in a folder until that folder is synced.
"""

import io
import itertools
import os
import shutil
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

PAGE = 4096


@dataclass
class Disk:
    """All operations on files below a folder, in order."""

    root: Path
    operations: list = field(default_factory=list)
    """(kind, number of the file or folder, ...), and (done, what) where the program says so."""

    def __post_init__(self):
        self.root = self.root.resolve()
        self._numbers = itertools.count(1)
        # The cache, as running programs see it: folders by number, with the numbers of their names.
        self.folders = {0: {}}
        self.sizes = {}
        self._open = {}

    def done(self, what):
        """The program may now rely on this."""
        self.operations.append(("done", what))

    def find(self, path):
        """The number of the folder that a path is in, and its name there; None elsewhere."""
        path = Path(os.path.abspath(path))
        if not path.is_relative_to(self.root) or path == self.root:
            return None
        *parents, name = path.relative_to(self.root).parts
        number = 0
        for parent in parents:
            number = self.folders[number].get(parent)
            if number is None:
                return None
        return number, name

    def number_of(self, path):
        if Path(os.path.abspath(path)) == self.root:
            return 0
        place = self.find(path)
        return place and self.folders[place[0]].get(place[1])

    def name(self, folder, name, number):
        """Give a file a name in a folder, or none."""
        self.operations.append(("name", folder, ((name, number),)))
        self._apply_names(folder, ((name, number),))

    def _apply_names(self, folder, changes):
        for name, number in changes:
            self.folders[folder].pop(name, None)
            if number is not None:
                self.folders[folder][name] = number

    def make(self, path, *, is_folder):
        number, (folder, name) = next(self._numbers), self.find(path)
        (self.folders if is_folder else self.sizes)[number] = {} if is_folder else 0
        self.operations.append(("make", number, is_folder))
        self.name(folder, name, number)
        return number

    def rename(self, before, after):
        folder, name = self.find(before)
        target, new = self.find(after)
        assert folder == target, "a rename between folders is not atomic here"
        changes = ((name, None), (new, self.folders[folder][name]))
        self.operations.append(("name", folder, changes))
        self._apply_names(folder, changes)

    def write(self, number, start, data):
        for place in range(start - start % PAGE, start + len(data), PAGE):
            first, last = max(place, start), min(place + PAGE, start + len(data))
            page = bytes(data[first - start : last - start])
            self.operations.append(("write", number, first, page))
        self.sizes[number] = max(self.sizes[number], start + len(data))

    def truncate(self, number, size):
        self.operations.append(("truncate", number, size))
        self.sizes[number] = size

    def sync(self, descriptor):
        if descriptor in self._open:
            self.operations.append(("sync", self._open[descriptor]))

    @contextmanager
    def recording(self, patch):
        """Record what this process does, through the functions of `os` and `io` that it calls."""
        disk, true = self, {name: getattr(os, name) for name in RECORDED}
        true_open = io.open

        class Recorded(io.FileIO):
            def __init__(self, path, mode):
                is_new = disk.number_of(path) is None
                super().__init__(path, mode)
                self.number = disk.make(path, is_folder=False) if is_new else disk.number_of(path)
                self.appends = "a" in mode
                if "w" in mode and not is_new:
                    disk.truncate(self.number, 0)
                disk._open[self.fileno()] = self.number

            def write(self, data):
                data = bytes(data)
                start = disk.sizes[self.number] if self.appends else self.tell()
                disk.write(self.number, start, data)
                return super().write(data)

            def truncate(self, size=None):
                disk.truncate(self.number, self.tell() if size is None else size)
                return super().truncate(size)

            def close(self):
                if not self.closed:
                    disk._open.pop(self.fileno(), None)
                super().close()

        def open_file(
            path, mode="r", buffering=-1, encoding=None, errors=None, newline=None, **more
        ):
            changes = set(mode) & set("wax+")
            if isinstance(path, int) or not changes or disk.find(path) is None:
                return true_open(path, mode, buffering, encoding, errors, newline, **more)
            buffered = io.BufferedWriter(Recorded(path, mode.replace("b", "").replace("t", "")))
            return (
                buffered if "b" in mode else io.TextIOWrapper(buffered, encoding, errors, newline)
            )

        def open_descriptor(path, flags, *arguments, **more):
            is_new = flags & os.O_CREAT and disk.find(path) and disk.number_of(path) is None
            descriptor = true["open"](path, flags, *arguments, **more)
            if is_new:
                disk.make(path, is_folder=False)
            number = disk.number_of(path)
            if number is not None:
                disk._open[descriptor] = number
            return descriptor

        def close(descriptor):
            disk._open.pop(descriptor, None)
            true["close"](descriptor)

        def fsync(descriptor):
            true["fsync"](descriptor)
            disk.sync(descriptor)

        def mkdir(path, *arguments, **more):
            true["mkdir"](path, *arguments, **more)
            if disk.find(path):
                disk.make(path, is_folder=True)

        def remove(name):
            def function(path, *arguments, **more):
                true[name](path, *arguments, **more)
                place = disk.find(path)
                if place:
                    disk.name(*place, None)

            return function

        def rename(name):
            def function(before, after, *arguments, **more):
                true[name](before, after, *arguments, **more)
                if disk.find(before):
                    disk.rename(before, after)

            return function

        functions = {"open": open_descriptor, "close": close, "fsync": fsync, "mkdir": mkdir}
        functions |= {name: remove(name) for name in ("unlink", "rmdir", "remove")}
        functions |= {name: rename(name) for name in ("rename", "replace")}
        with patch.context() as inner:
            for name, function in functions.items():
                inner.setattr(os, name, function)
            inner.setattr(io, "open", open_file)
            # Trees are then deleted by paths, not by descriptors of folders.
            inner.setattr(shutil, "_use_fd_functions", False)
            yield self

    def promised(self, moment):
        """What the program could rely on after so many operations."""
        return [operation[1] for operation in self.operations[:moment] if operation[0] == "done"]

    def write_what_is_left(self, moment, random, target):
        """Write what a power loss after so many operations may leave to a new folder."""
        folders, files, share = {0: {}}, {}, random.choice([0.0, 0.1, 0.5, 0.9, 1.0])
        synced = {}
        for place, operation in enumerate(self.operations[:moment]):
            if operation[0] == "sync":
                synced[operation[1]] = place
        for place, operation in enumerate(self.operations[:moment]):
            kind, number, *details = operation
            if kind == "make":
                # Without a name nobody sees it.
                (folders if details[0] else files)[number] = {} if details[0] else bytearray()
            if kind in ("make", "sync", "done"):
                continue
            if synced.get(number, -1) < place and random.random() >= share:
                continue
            if kind == "name":
                for name, one in details[0]:
                    folders[number].pop(name, None)
                    if one is not None:
                        folders[number][name] = one
            elif kind == "truncate":
                content = files[number]
                content.extend(bytes(max(0, details[0] - len(content))))
                del content[details[0] :]
            else:
                start, page = details
                content = files[number]
                content.extend(bytes(max(0, start - len(content))))
                content[start : start + len(page)] = page
        _write_folder(target, 0, folders, files)


RECORDED = ("open", "close", "fsync", "mkdir", "unlink", "rmdir", "remove", "rename", "replace")


def _write_folder(path, number, folders, files):
    path.mkdir()
    for name, one in folders[number].items():
        if one in folders:
            _write_folder(path / name, one, folders, files)
        else:
            (path / name).write_bytes(files[one])
