"""From files of text to a trained model and its samples: the steps of `staircase quickstart`.

Each step is a command of its own, which is said before it is done. What is in the folder already
is not done again, so a quickstart that was killed continues.
"""

import math
import re
import shlex
import signal
import statistics
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from staircase_attention.batches import Batch
from staircase_attention.checks import check_number, input_error
from staircase_attention.data import BytePairTraining, Corpus, HeldOut, TextSource, prepare_text
from staircase_attention.data.preparation import report_files
from staircase_attention.display import Display
from staircase_attention.experiments.catalog import find_recipe
from staircase_attention.experiments.page import SAMPLE_TOKENS, SAMPLING, prompts, samples
from staircase_attention.experiments.results import read_lines
from staircase_attention.files import read_json, save_folder, sha256_of, write_json
from staircase_attention.training import OptimizerConfig, Recipe, RunFolder, RunResult
from staircase_attention.training.learner import Learner, NumSymbols, build_model
from staircase_attention.training.loading import load_language_model
from staircase_attention.training.processes import Processes, StopRequested, choose_device
from staircase_attention.training.run import resume, train

# The share of the text for validation, and for the test; and the most bytes of each.
HELD_OUT, MOST_HELD_OUT = 0.05, 100_000
# With fewer documents of equal size, their hashes would not give splits of these sizes.
MANY_DOCUMENTS = 200
# More passes over a text teach a small model little.
MOST_EPOCHS = 30
# Widths, layers and heads of sizes that the kernels have. The first is taken that is not too large:
# for the text, with more weights per token than this, or for the time, with fewer updates.
SIZES = ((512, 8, 8), (256, 6, 4), (192, 4, 6), (128, 3, 4), (128, 2, 4), (64, 2, 4))
LARGEST_ON_CPU = 192
MOST_WEIGHTS, LEAST_UPDATES = 10, 1_500
WARM_UP_UPDATES, MEASURED_UPDATES = 8, 10
# The share of the time for test and samples; and that of the time to train for scores.
LAST_SHARE, SCORING_SHARE, MOST_SCORED = 0.1, 0.1, 1 << 16
# A CPU makes too few passes over the text for dropout to help.
ON_CPU = {
    "model.schedule.chunk_size": 32,
    "training": {"num_lanes": 4, "segment_length": 128},
    "training.optimizer": {"kind": "muon", "learning_rate": 1e-2, "beta1": 0.95},
}
ON_GPU = {"model.core.dropout": 0.1}
# Up to its decay, a run does not depend on the number of updates, which can change as the speed.
DECAY = {"decay": "linear", "decay_part": 0.25, "final_fraction": 0.0}


@dataclass(frozen=True, kw_only=True, slots=True)
class Quickstart:
    """A folder for everything, and what it is made of."""

    files: Sequence[Path]
    folder: Path
    minutes: float = 9.0
    """Time for everything; half of it is for training, whatever the rest takes."""
    say: Callable[[str], None] = print
    """Receives the commands."""
    preparing: Display = field(default_factory=Display)
    training: Display = field(default_factory=Display)

    def __post_init__(self) -> None:
        check_number("minutes", self.minutes, minimum=0.001, example=8)

    def run(self) -> tuple[RunResult, list[str]]:
        """All steps: the result, and samples."""
        end_time = time.monotonic() + (1 - LAST_SHARE) * 60 * self.minutes
        sources, skipped = [TextSource(path) for path in self.files], Counter[str]()
        sizes = [len(data) for data in _whole_documents(sources, skipped)]
        unused = [f"{what}: {count:,}" for what, count in skipped.items()]
        # Before the folder holds anything: with this much no split can be empty.
        if HELD_OUT * sum(sizes) < 1:
            rule = "a text must have something to train on, to validate and to test"
            received = ", ".join([f"{sum(sizes):,} bytes", *unused])
            raise input_error(rule, received, "use more text, in JSON as text, turns or messages")
        files = [file.resolve() for source in sources for file in source.files]
        checksums = [[str(file), sha256_of(file)] for file in files]
        plan, path = {"files": checksums, "minutes": self.minutes}, self.folder / "quickstart.json"
        self.folder.mkdir(parents=True, exist_ok=True)
        # A kill may leave a part of the plan.
        if any(self.folder.glob("[!.]*")) and (not path.exists() or read_json(path) != plan):
            rule = "a folder must be new, empty, or of a quickstart of the same files and time"
            raise input_error(rule, self.folder, "name another --output")
        write_json(path, plan)
        for line in unused:
            self.preparing.say(f"skipped: {line}")
        corpus = self._prepared(sources, sizes)
        result = self._trained(corpus, max(end_time, time.monotonic() + 30 * self.minutes))
        return result, self._samples(corpus)

    def _command(self, *words: object) -> None:
        self.say("$ " + shlex.join(["staircase", *map(str, words)]))

    def _prepared(self, sources: list[TextSource], sizes: list[int]) -> Corpus:
        """The corpus: many documents are split by their hashes, few or a few long ones by size."""
        output, total = self.folder / "corpus", sum(sizes)
        share = min(HELD_OUT, MOST_HELD_OUT / max(1, total))
        vocab_size = vocabulary(total)
        end = ("--tokeniser", f"bpe-{vocab_size}", "--output", output)
        # As many documents of equal size would give splits that vary as much in size.
        if total**2 >= MANY_DOCUMENTS * sum(size**2 for size in sizes):
            held_out = HeldOut(valid=share, test=share)
            self._command("prepare", "text", *self.files, "--valid", share, "--test", share, *end)
        else:
            for source in sources:
                report_files(source, self.preparing)
            held_out, text = HeldOut(valid=0, test=0), self.folder / "text"
            size = int(share * total)
            write_splits(sources, text, ends=(total - 2 * size, total - size))
            own = ("--valid-file", text / "valid", "--test-file", text / "test")
            self._command("prepare", "text", text / "train", *own, *end)
            sources = [TextSource(text / "train")]
            sources += [TextSource(text / split, split=split) for split in ("valid", "test")]
        return prepare_text(
            sources,
            output,
            tokeniser=BytePairTraining(vocab_size=vocab_size),
            held_out=held_out,
            progress=self.preparing,
        )

    def _chosen(self, corpus: Corpus, seconds: float) -> Recipe:
        """The largest recipe that gets enough updates, or the smallest of all."""
        for recipe in sized_recipes(corpus, on_gpu=choose_device().type == "cuda"):
            each = seconds_per_update(recipe, corpus.vocab_size)
            num_updates = int((1 - SCORING_SHARE) * seconds / each)
            if num_updates >= LEAST_UPDATES:
                break
        return planned(recipe, corpus, num_updates)

    def _trained(self, corpus: Corpus, end_time: float) -> RunResult:
        """Choose a recipe and train; with the updates that fitted it gives the same run at once."""
        path, run = self.folder / "recipe.json", RunFolder(self.folder / "run")
        if not path.exists():
            write_json(path, self._chosen(corpus, end_time - time.monotonic()).to_plain())
        recipe = find_recipe(str(path))
        self._command("train", path, "--output", run.path)
        spent = max((line["wall_seconds"] for line in read_lines(run.timing)), default=0.0)
        most = planned(recipe, corpus, sys.maxsize).training.num_updates
        pace = Pace(self.training, recipe.training.optimizer, most, end_time - spent)
        while True:
            try:
                if run.is_unbegun:
                    result = train(recipe, run.path, progress=pace)
                else:
                    result = resume(run.path, num_updates=pace.wanted, progress=pace)
                break
            except StopRequested as stop:
                if pace.wanted is None or stop.exit_status != 128 + signal.SIGTERM:
                    # A resumed run alone would neither keep the time nor end with samples.
                    stop.args = ("stopped and saved; run the same command again to resume",)
                    raise
        write_json(path, run.recipe().to_plain())
        return result

    def _samples(self, corpus: Corpus) -> list[str]:
        """Continued prompts from the validation text."""
        given = prompts(corpus)
        options = [word for prompt in given for word in ("--prompt", prompt)]
        options += ["--temperature", str(SAMPLING.temperature), "--top-p", str(SAMPLING.top_p)]
        self._command("sample", self.folder / "run", *options, "--max-tokens", SAMPLE_TOKENS)
        language = load_language_model(self.folder / "run")
        language.model.to(choose_device())
        return samples(language, given)


def vocabulary(num_bytes: int) -> int:
    """Symbols for a text of this size: 2,000 for a megabyte."""
    return int(min(8000, max(300, round(2 * num_bytes**0.5, -2))))


def sized_recipes(corpus: Corpus, *, on_gpu: bool) -> Iterator[Recipe]:
    """Small language recipes from large to small, none too large for the text but the last."""
    recipe = find_recipe("base-small/cached-staircase").override(ON_CPU)
    if on_gpu:
        recipe = find_recipe("enwik8-fast/cached-staircase-c128").override(ON_GPU)
    training, num_tokens = recipe.training, corpus.split("train").num_tokens
    shortest = min(corpus.split(name).num_tokens for name in ("valid", "test"))
    # A lane has some segments of text before it comes round to where it began.
    lanes = max(1, min(training.num_lanes, num_tokens // training.segment_length // 4))
    recipe = recipe.override(
        {
            "name": "quickstart",
            "task.folder": str(corpus.folder),
            "training.num_lanes": lanes,
            "training.optimizer": DECAY,
            "training.evaluation_lanes": max(1, min(training.evaluation_lanes, shortest)),
        }
    )
    for width, num_layers, num_heads in SIZES:
        num_weights = 12 * num_layers * width**2
        is_fit = num_weights <= MOST_WEIGHTS * num_tokens and (on_gpu or width <= LARGEST_ON_CPU)
        if is_fit or width == SIZES[-1][0]:
            core = {"width": width, "num_layers": num_layers, "num_heads": num_heads}
            yield recipe.override({"model.core": core})


def planned(recipe: Recipe, corpus: Corpus, num_updates: int) -> Recipe:
    """The recipe for this number of updates, at most MOST_EPOCHS, with about ten scores."""
    batch = recipe.training.num_lanes * recipe.training.segment_length
    count = max(4, min(num_updates, MOST_EPOCHS * corpus.split("train").num_tokens // batch))
    tenth = max(1, count // 10)
    return recipe.override(
        {
            "training": {
                "num_updates": count,
                "evaluate_every": tenth,
                "checkpoint_every": tenth,
                "log_every": max(1, tenth // 10),
                # A token is scored in less than half the time that it takes to train on it.
                "evaluation_tokens": min(MOST_SCORED, int(2 * SCORING_SHARE * tenth * batch)),
                "optimizer": {"warm_up": max(1, count // 20)},
            }
        }
    )


def seconds_per_update(recipe: Recipe, vocab_size: int) -> float:
    """The median of some updates with random tokens, after a warm-up."""
    symbols = NumSymbols(num_inputs=vocab_size, num_outputs=vocab_size)
    learner = Learner(recipe, build_model(recipe, symbols), choose_device(), Processes())
    lanes, seconds = recipe.training.num_lanes, list[float]()
    shape = (lanes, recipe.training.segment_length)
    tokens = np.random.default_rng(0).integers(vocab_size, size=shape)
    for _ in range(WARM_UP_UPDATES + MEASURED_UPDATES):
        began = time.perf_counter()
        batch = Batch(inputs=tokens, targets=tokens)
        # It returns a loss, so the device has finished.
        learner.update(batch, lanes=range(lanes), rate=1e-6, wants_stop=False)
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds[WARM_UP_UPDATES:])


class Pace(Display):
    """Stops a run, before its decay begins, if another number of updates will end in time."""

    wanted: int | None = None
    """That number."""

    def __init__(self, display: Display, config: OptimizerConfig, most: int, end: float) -> None:
        self.display, self.config, self.most, self.end_time = display, config, most, end
        self.window = max(1e-9, (end - time.monotonic()) / 20)
        self.say, self.end = display.say, display.end  # type: ignore[method-assign]

    def begin(self, name: str, done: int, total: int) -> None:
        """A run starts or resumes."""
        self.num_updates, self.wanted = total, None
        # Recent seconds, and updates in them; the first update is for warming up.
        self.last, self.seconds, self.count = (done + 1, math.inf), 0.0, 0.0
        self.display.begin(name, done, total)

    def advance(self, done: int, **facts: float) -> None:
        """Measure the speed, and stop when the decay is due with too many or too few updates."""
        self.display.advance(done, **facts)
        now, (before, then) = time.monotonic(), self.last
        self.last = (done, now)
        if done <= before:
            # A score, whose time is no update's.
            return
        kept = max(0.0, 1 - (now - then) / self.window)
        self.seconds, self.count = kept * self.seconds + now - then, kept * self.count + 1
        self.wanted = self._wanted(done, (self.end_time - now) * self.count / self.seconds)
        if self.wanted is not None and threading.current_thread() is threading.main_thread():
            self.say(f"at this speed {self.wanted:,} updates fit, not {self.num_updates:,}")
            signal.raise_signal(signal.SIGTERM)

    def _wanted(self, update: int, left: float) -> int | None:
        """The number of updates that fits, if it must be chosen now and differs by a twentieth."""
        warm_up, part = self.config.warm_up, self.config.decay_part
        decay_start = self.num_updates - part * (self.num_updates - warm_up)
        # Fewer updates would have begun their decay already.
        fewest = warm_up + (update + 1 - warm_up) / (1 - part)
        fitting = min(update + left, self.most)
        if update > decay_start or (update + 1 <= decay_start and fitting > fewest):
            return None
        wanted = math.ceil(max(fitting, fewest))
        return wanted if abs(wanted - self.num_updates) > self.num_updates / 20 else None


def _whole_documents(sources: Sequence[TextSource], skipped: Counter[str]) -> Iterator[bytes]:
    """All documents; what cannot be used is counted."""
    for source in sources:
        parts, unused = list[bytes](), dict[str, int]()
        for document, cursor in source.documents(None):
            parts.append(document.data)
            unused |= cursor.skipped
            if not document.is_continued:
                if data := b"".join(parts):
                    yield data
                parts = []
        skipped.update(unused)


def write_splits(sources: Sequence[TextSource], folder: Path, *, ends: tuple[int, int]) -> None:
    """Copies of all documents in three folders, unless they are there.

    Train and valid end after these numbers of bytes, where a line or a word does.
    """

    def write(scratch: Path) -> None:
        place = 0
        for number, data in enumerate(_whole_documents(sources, Counter())):
            first, second = (_cut(data, end - place, (ends[1] - ends[0]) // 2) for end in ends)
            place += len(data)
            parts = {"train": data[:first], "valid": data[first:second], "test": data[second:]}
            for split, part in parts.items():
                if part:
                    (scratch / split).mkdir(exist_ok=True)
                    (scratch / split / f"{number:04d}.txt").write_bytes(part)

    if not folder.exists():
        save_folder(folder, write)


def _cut(data: bytes, start: int, reach: int) -> int:
    """Where a line ends, or else a word, or else a character, soon after a place."""
    start = min(max(start, 0), len(data))
    near = data[start : start + reach] if start else b""
    found = (re.search(end, near) for end in (rb"\n", rb" ", rb"(?![\x80-\xbf])"))
    return start + next(filter(None, found)).end()
