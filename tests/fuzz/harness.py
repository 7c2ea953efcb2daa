"""Spoil files at random, use them, and judge what happens.

    python tests/fuzz/harness.py --mutations 10000 --seed 1

A file that was changed must be refused in one line, or give what the honest one gives. A file whose
checksums were made to fit again, and a format without checksums, may give something else: that is
another file. Nothing may end in a traceback, take over ten seconds, or allocate much more.
"""

import argparse
import contextlib
import io
import multiprocessing
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from pathlib import Path

HERE = Path(__file__).parent
for place in ("", "data", "training", "generation", "fuzz"):
    sys.path.insert(0, str(HERE.parent / place))

import torch  # noqa: E402
from formats import FORMATS  # noqa: E402
from mutations import mutate  # noqa: E402

from staircase_attention.checks import InputError  # noqa: E402

SECONDS = 10
# Allocators take memory in large pieces; honest files of these sizes need less than this.
SLACK = 256 << 20
VERDICTS = ("refused", "same", "other file", "failure")


class TooSlowError(BaseException):
    """A case that took too long; nothing that is tested may catch it."""


def too_slow(number, frame):
    raise TooSlowError("".join(traceback.format_stack(frame)[-3:]))


@contextlib.contextmanager
def bounded(num_bytes: int):
    """Limit time and memory."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    handler = signal.signal(signal.SIGALRM, too_slow)
    resource.setrlimit(resource.RLIMIT_AS, (used + num_bytes, before[1]))
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        resource.setrlimit(resource.RLIMIT_AS, before)
        signal.signal(signal.SIGALRM, handler)


def peak() -> int:
    """Most memory since the last reset, in bytes."""
    [line] = [one for one in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in one]
    return int(line.split()[1]) << 10


def reset_peak() -> int:
    Path("/proc/self/clear_refs").write_text("5")
    return peak()


class Fuzzing:
    """Honest artefacts, made once, and cases drawn from a seed."""

    def __init__(self, folder: Path, formats=FORMATS) -> None:
        self.folder, self.formats = folder, formats
        self.honest, self.needs = {}, {}
        for form in formats:
            for seed in (0, 1):
                place = self._origin(form, seed)
                place.mkdir()
                form.make(place, seed)
            for _ in range(2):
                copy = self._copied(form)
                before = reset_peak()
                result = form.use(copy)
                # The second time: the first one imports and warms up.
                self.needs[form.name] = max(0, peak() - before)
                assert self.honest.setdefault(form.name, result) == result, form.name

    def _origin(self, form, seed):
        return self.folder / f"{type(form).__name__}-{seed}"

    def _copied(self, form):
        copy = self.folder / "case"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(self._origin(form, 0), copy, symlinks=True)
        return copy

    def cases(self, numbers: list[int], seed: int):
        """All cases, in a process of their own, since a library may end its process."""
        while numbers:
            reading, writing = multiprocessing.Pipe(duplex=False)
            child = multiprocessing.get_context("fork").Process(
                target=self._send, args=(numbers, seed, writing)
            )
            child.start()
            writing.close()
            try:
                while numbers:
                    yield reading.recv()
                    numbers = numbers[1:]
            except EOFError:
                number, numbers = numbers[0], numbers[1:]
                name = self.formats[number % len(self.formats)].name
                yield name, "failure", f"case {number}: the process ended"
            child.join()

    def _send(self, numbers, seed, writing):
        for number in numbers:
            writing.send(self.case(number, seed))

    def case(self, number: int, seed: int) -> tuple[str, str, str]:
        """The format, the verdict, and what happened."""
        draw = random.Random(f"{seed}-{number}")
        form = self.formats[number % len(self.formats)]
        copy = self._copied(form)
        path = draw.choice(form.files(copy))
        twin = self._origin(form, 1) / path.relative_to(copy)
        kind = mutate(path, twin if twin.exists() else path, draw)
        is_fitted = form.is_sealed and draw.random() < 0.4
        if is_fitted:
            form.seal(copy, path)
        # A single file that is replaced by another one is that other one. Without a result, which
        # may be deleted to score a run again, a run is not finished.
        may_differ = is_fitted or not form.is_sealed or (kind == "swap" and path.parent == copy)
        may_differ |= kind == "remove" and path.name in ("result.json", "lengths.json")
        # Metrics may be emptied on purpose: the run then resumes without them.
        may_differ |= path.name == "metrics.jsonl" and path.is_file() and not path.stat().st_size
        about = f"case {number}: {kind} of {path.relative_to(copy)}" + " (fitted)" * is_fitted
        verdict, message = self._judge(form, copy, may_differ=may_differ)
        return form.name, verdict, f"{about}: {message}"

    def _judge(self, form, copy, *, may_differ) -> tuple[str, str]:
        before, started = reset_peak(), time.monotonic()
        try:
            with (
                bounded(SLACK + 2 * self.needs[form.name]),
                contextlib.redirect_stdout(io.StringIO()),
                contextlib.redirect_stderr(io.StringIO()),
            ):
                result = form.use(copy)
        except (InputError, FileNotFoundError) as error:
            text = str(error)
            is_line = "\n" not in text and len(text) < 1_000 and ", got " in text
            verdict, message = ("refused" if is_line else "failure"), text
        except TooSlowError as error:
            verdict, message = "failure", f"too slow: {error}"
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            verdict, message = "failure", "".join(traceback.format_exception(error)[-4:])
        else:
            is_same = result == self.honest[form.name]
            verdict = "same" if is_same else "other file" if may_differ else "failure"
            message = "" if is_same else "another result"
        spent = peak() - before
        if verdict != "failure" and spent > 2 * self.needs[form.name] + (64 << 20):
            verdict, message = "failure", f"allocated {spent >> 20} MiB ({message})"
        seconds = time.monotonic() - started
        return verdict, f"{message} [{seconds:.2f} s]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--mutations", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="Run this case alone.")
    parser.add_argument("--formats", default="", help="Only formats whose name has this.")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        chosen = [form for form in FORMATS if options.formats in form.name]
        fuzzing, counts = Fuzzing(Path(folder), chosen), Counter()
        numbers = range(options.mutations) if options.only is None else [options.only]
        started = time.monotonic()
        for name, verdict, message in fuzzing.cases(list(numbers), options.seed):
            counts[name, verdict] += 1
            if verdict == "failure" or options.only is not None:
                print(f"{verdict.upper()} {name} {message}", flush=True)
    names = [form.name for form in chosen]
    print(f"seed {options.seed}, {len(numbers)} mutations, {time.monotonic() - started:.0f} s\n")
    print("| format | mutations | " + " | ".join(VERDICTS) + " |\n|---|" + "---|" * 5)
    for name in [*names, "all"]:
        row = [
            sum(counts[one, verdict] for one in names if name in (one, "all"))
            for verdict in VERDICTS
        ]
        print(f"| {name} | {sum(row)} | " + " | ".join(map(str, row)) + " |")
    sys.exit(any(verdict == "failure" for _, verdict in counts))


if __name__ == "__main__":
    main()
