"""`staircase bench`: times of updates and decoding, memory, and the share of the device's peak.

Tokens are random, so no corpus is needed. The set `engine` has the four sizes at which the authors'
public code was timed, `relative` the models of the Reddit table at one size. In both, dropout is 0
and numbers are bfloat16 on a GPU, float32 on a CPU. Results are plain dictionaries, as in the file.
"""

import contextlib
import datetime
import functools
import gc
import itertools
import math
import os
import resource
import shlex
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from staircase_attention.batches import Batch
from staircase_attention.checks import check_choice, check_integer, input_error
from staircase_attention.experiments.catalog import find_recipe, recipes
from staircase_attention.files import check_can_write, write_json
from staircase_attention.generation import SamplingConfig, stream
from staircase_attention.models.cost import Cost, measure_cost
from staircase_attention.tasks import load_task
from staircase_attention.training import FamilyModel, LSTMModel, Recipe, TaskChoice
from staircase_attention.training.learner import Learner, NumSymbols, build_model, precision_of
from staircase_attention.training.optimizer import learning_rate
from staircase_attention.training.processes import Processes
from staircase_attention.training.run_folder import environment

if TYPE_CHECKING:
    from rich.table import Table

Plain = dict[str, Any]
Say = Callable[[str], None]

# Incremented when the layout of the file changes.
FORMAT = 2
# About how long is timed, where the number of repeats is not given.
SECONDS = 3.0
LEAST_LAPS, MOST_LAPS = 5, 2000
LEAST_WARM_UP = 5
# Tokens before those that are timed, so that windows are full.
LEAST_PROMPT = 256
# Rows and columns of the matrices whose product is the peak of operations.
PRODUCT_SIZE = {"cuda": 8192, "cpu": 1024}
REDDIT = ("transformer-xl", "cached-staircase-c128", "staircase-n8-c32", "ladder-8", "feedback")
# Named sets: rows, each with its recipe and its number of lanes.
SETS: dict[str, dict[str, tuple[str, int]]] = {
    "engine": {
        "algorithm": ("algorithm/staircase-n4-c16", 256),
        "random-walk": ("random-walk/staircase-n8-c8", 512),
        "enwik8": ("enwik8/staircase-n4-c64", 128),
        "reddit": ("reddit/staircase-n8-c32", 32),
    },
    "relative": {row: (f"reddit/{row}", 32) for row in REDDIT},
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Subject:
    """A model to time: a recipe, and the numbers of symbols that replace its data."""

    recipe: Recipe
    symbols: NumSymbols

    @property
    def carries_state(self) -> bool:
        """Whether an update continues from the state of the one before."""
        task = self.recipe.task
        return isinstance(task, TaskChoice) or task.form == "stream"

    @property
    def chunk_and_reach(self) -> tuple[int, int]:
        """C of its schedule, and the tokens after which a bounded state has its full size."""
        model = self.recipe.model
        if isinstance(model, LSTMModel):
            return 1, 1
        return model.schedule.chunk_length, model.schedule.default_max_distance

    def cost(self, model: FamilyModel) -> Cost:
        """What one lane of an update costs."""
        return measure_cost(
            vocab_size=self.symbols.num_inputs,
            core=model.core,
            schedule=model.schedule,
            output_size=self.symbols.num_outputs,
            start=None if self.carries_state else 0,
            segment=self.recipe.training.segment_length,
        )


def find_subjects(
    names: Iterable[str], *, overrides: Mapping[str, Any], device: torch.device
) -> list[Subject]:
    """The recipes, sets and rows of sets with these names, each once, checked."""
    rows = {f"{name}/{row}": size for name, one in SETS.items() for row, size in one.items()}
    found: dict[str, Subject] = {}
    for name in names:
        if not name.endswith(".json"):
            check_choice("a recipe or set to bench", name, [*SETS, *rows, *recipes()])
        for full in [f"{name}/{row}" for row in SETS[name]] if name in SETS else [name]:
            recipe = find_recipe(rows[full][0] if full in rows else full)
            if full in rows:
                precision = "bfloat16" if device.type == "cuda" else "float32"
                same: Plain = {"model.core.dropout": 0.0, "model.core.embedding_dropout": 0.0}
                same |= {"training.num_lanes": rows[full][1], "training.precision": precision}
                recipe = replace(recipe.override(same), name=full)
            recipe = recipe.override(overrides)
            symbols = num_symbols(recipe)
            # Settings that cannot be built are refused before anything is timed.
            with torch.device("meta"):
                build_model(recipe, symbols)
            found[full] = Subject(recipe=recipe, symbols=symbols)
    if not found:
        raise input_error("bench needs a recipe or a set", "none", "name one")
    return list(found.values())


def num_symbols(recipe: Recipe) -> NumSymbols:
    """The symbols of a recipe's task; for text the paper's, so that no corpus is needed."""
    choice = recipe.task
    if isinstance(choice, TaskChoice):
        task = load_task(choice.reference, **choice.options)
        return NumSymbols(num_inputs=task.num_inputs, num_outputs=task.num_outputs)
    size = 256 if "enwik8" in choice.folder else 8008
    return NumSymbols(num_inputs=size, num_outputs=size)


def run_bench(
    subjects: Sequence[Subject],
    *,
    device: torch.device,
    updates: bool = True,
    decode: bool = False,
    batches: Sequence[int] = (1, 64),
    repeats: int | None = None,
    output: Path | None = None,
    say: Say = lambda text: None,
) -> Plain:
    """Time the subjects one after another; what fails is reported and stops nothing else.

    Without `repeats`, as many updates, and tokens per row, as take about three seconds. `batches`
    are rows that are decoded together, one number after another. The file `output` is written after
    every measurement, so that a kill costs one at most.
    """
    if not (updates or decode):
        rule = "a bench times updates or decoding"
        raise input_error(rule, "neither", "leave --no-updates out, or add --decode")
    for number in batches:
        check_integer("batch", number, minimum=1, example=64)
    if repeats is not None:
        check_integer("repeats", repeats, minimum=1, example=20)
    if output is not None:
        check_can_write(output, "--output")
    say("the peaks of the device")
    known = environment()
    precisions = dict.fromkeys(one.recipe.training.precision for one in subjects)
    report: Plain = {
        "format": FORMAT,
        "written": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "command": shlex.join(known.pop("command")),
        "environment": known | {"num_cores": os.cpu_count(), "cuda": torch.version.cuda},
        "peaks": attempt(lambda: measure_peaks(device, precisions)),
        "rows": [],
    }
    for subject in subjects:
        options = (subject, device, repeats, say)
        actions = {"updates": functools.partial(time_updates, *options)} if updates else {}
        for number in dict.fromkeys(batches) if decode else ():
            what = f"decoding, batch {number}"
            actions[what] = functools.partial(time_decoding, *options, num_rows=number)
        for what, action in actions.items():
            times = attempt(action)
            peak = report["peaks"].get(subject.recipe.training.precision)
            if peak and "flops_per_second" in times:
                times["share_of_peak"] = times["flops_per_second"] / peak["flops_per_second"]
            recipe, symbols = subject.recipe.to_plain(), asdict(subject.symbols)
            row = {"name": subject.recipe.name, "what": what, "recipe": recipe, **symbols}
            report["rows"].append(row | times)
            if output is not None:
                write_json(output, report)
    return report


def attempt(action: Callable[[], Plain]) -> Plain:
    """What an action returns, or why it failed. It starts with free memory, counted from here.

    Libraries keep some memory of earlier actions; what they keep is part of a peak, so it is
    recorded too.
    """
    gc.collect()
    before = 0
    # After some failures, no call to the GPU succeeds; each action then reports its own failure.
    with contextlib.suppress(RuntimeError):
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
    try:
        found = action()
        return found | ({"memory_before_bytes": before} if "peak_memory_bytes" in found else {})
    except Exception as error:
        text = " ".join(str(error).split())[:160]
        # The CPU's allocator raises a plain RuntimeError.
        is_memory = isinstance(error, (torch.OutOfMemoryError, MemoryError))
        is_memory |= "not enough memory" in text
        reason = "out of memory" if is_memory else f"{type(error).__name__}: {text}"
        return {"failure": reason, "traceback": "".join(traceback.format_exception(error))}


def failures(report: Plain) -> list[str]:
    """The reasons of all that failed."""
    return [part["failure"] for part in (report["peaks"], *report["rows"]) if "failure" in part]


def laps(action: Callable[[], object], count: int, device: torch.device) -> Plain:
    """Time an action repeatedly: the device's events on a GPU, the wall clock elsewhere.

    The total is by the wall clock, with the device synchronised before and after; in between
    nothing waits.
    """
    is_cuda = device.type == "cuda"

    def mark() -> Any:  # noqa: ANN401
        if not is_cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    synchronize(device)
    began = time.perf_counter()
    marks = [mark()]
    for _ in range(count):
        action()
        marks.append(mark())
    synchronize(device)
    total = time.perf_counter() - began
    pairs = itertools.pairwise(marks)
    # Events count milliseconds.
    each = [a.elapsed_time(b) / 1e3 if is_cuda else b - a for a, b in pairs]
    return {
        "num_laps": count,
        "seconds_in_all": total,
        "seconds_each": each,
        "mean_seconds": total / count,
        "median_seconds": statistics.median(each),
    }


def synchronize(device: torch.device) -> None:
    """Wait until the device has done all its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def num_laps(seconds: float) -> int:
    """How many laps of about these seconds are timed.

    >>> num_laps(0.1), num_laps(60.0), num_laps(1e-6)
    (30, 5, 2000)
    """
    return max(LEAST_LAPS, min(MOST_LAPS, math.ceil(SECONDS / max(seconds, 1e-9))))


def measure_peaks(device: torch.device, precisions: Iterable[str]) -> Plain:
    """The speed of a large matrix product in each precision."""
    size, products = PRODUCT_SIZE[device.type], {}
    warm_up, count = (10, 30) if device.type == "cuda" else (2, 7)
    for name in precisions:
        dtype = getattr(torch, name)
        left, right = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
        multiply = functools.partial(torch.mm, left, right)
        laps(multiply, warm_up, device)
        found = laps(multiply, count, device)
        # A product of matrices [size, size] has size³ multiplications and as many additions.
        speed = 2 * size**3 / found["median_seconds"]
        products[name] = {"size": size, "flops_per_second": speed, **found}
    return products


def _memory(device: torch.device) -> Plain:
    if device.type == "cuda":
        peak, of = torch.cuda.max_memory_allocated(device), "tensors on the GPU"
    else:
        # Linux counts kibibytes, macOS bytes.
        unit = 1 if sys.platform == "darwin" else 1024
        peak = unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        of = "the whole process since it began"
    return {"peak_memory_bytes": peak, "peak_memory_of": of}


def time_updates(subject: Subject, device: torch.device, repeats: int | None, say: Say) -> Plain:
    """Time the trainer's own updates on random tokens, after a warm-up."""
    name, training = subject.recipe.name, subject.recipe.training
    say(f"{name}: first update")
    began = time.perf_counter()
    torch.manual_seed(subject.recipe.seed)
    learner = Learner(
        subject.recipe,
        build_model(subject.recipe, subject.symbols),
        device,
        Processes(),
        carries_state=subject.carries_state,
        report=lambda remark: say(f"{name}: {remark}"),
    )
    was_applied: list[bool] = []
    batches, lanes = itertools.cycle(random_batches(subject)), range(training.num_lanes)

    def update() -> None:
        number = min(len(was_applied), training.num_updates - 1)
        rate = learning_rate(training.optimizer, number, training.num_updates)
        outcome = learner.update(next(batches), lanes=lanes, rate=rate, wants_stop=False)
        was_applied.append(outcome.was_applied)

    laps(update, 1, device)
    first_after = time.perf_counter() - began
    say(f"{name}: {num_warm_up(subject)} more to warm up")
    warm_up = laps(update, num_warm_up(subject), device)["seconds_each"]
    # Of the last two, one may have been slow by chance.
    count = repeats or num_laps(min(warm_up[-2:]))
    say(f"{name}: {count} updates")
    found, flops = laps(update, count, device), update_flops(subject)
    tokens = training.num_lanes * training.segment_length
    return {
        "first_update_after_seconds": first_after,
        **found,
        "tokens_per_second": tokens / found["mean_seconds"],
        "flops_per_second": flops / found["mean_seconds"],
        **_memory(device),
        "num_skipped_updates": was_applied.count(False),
        "num_parameters": sum(one.numel() for one in learner.model.parameters()),
    }


def num_warm_up(subject: Subject) -> int:
    """Updates until the state has had all the shapes that it takes, and some more.

    Where a segment is not a whole number of chunks, several shapes alternate. Each runs once as
    written, and once to be captured.
    """
    length, (chunk, reach) = subject.recipe.training.segment_length, subject.chunk_and_reach
    num_shapes = min(16, chunk // math.gcd(chunk, length))
    return max(LEAST_WARM_UP, math.ceil(reach / length) + 2 * (num_shapes - 1) + 3)


def random_batches(subject: Subject) -> list[Batch]:
    """Four batches of random tokens with random targets, always the same ones."""
    training = subject.recipe.training
    shape = (training.num_lanes, training.segment_length)
    generator = np.random.default_rng(0)
    return [
        Batch(
            inputs=generator.integers(subject.symbols.num_inputs, size=shape),
            targets=generator.integers(subject.symbols.num_outputs, size=shape),
        )
        for _ in range(4)
    ]


def update_flops(subject: Subject) -> int:
    """Operations of all lanes of one update; recomputed activations are not counted."""
    model, training = subject.recipe.model, subject.recipe.training
    if isinstance(model, LSTMModel):
        # Per layer: input and state, each times a matrix [width, 4 width], 2 operations per entry.
        gates = model.num_layers * 2 * 4 * 2 * model.width**2
        outputs = 2 * model.width * subject.symbols.num_outputs
        forward = training.segment_length * (gates + outputs)
    else:
        forward = subject.cost(model).flops
    # A backward pass has twice the operations of a forward pass.
    return 3 * training.num_lanes * forward


def time_decoding(
    subject: Subject, device: torch.device, repeats: int | None, say: Say, *, num_rows: int
) -> Plain:
    """Time new tokens of several rows, after random prompts that fill every window."""
    torch.manual_seed(subject.recipe.seed)
    model = build_model(subject.recipe, subject.symbols)
    model = model.to(device=device, dtype=precision_of(subject.recipe)).eval()
    chunk, reach = subject.chunk_and_reach
    # Whole chunks, and one token that goes in with the first round.
    length = math.ceil(max(LEAST_PROMPT, reach) / chunk) * chunk + 1
    generator = torch.Generator().manual_seed(0)
    prompts = torch.randint(subject.symbols.num_inputs, (num_rows, length), generator=generator)
    say(f"{subject.recipe.name}: prompts of {num_rows} rows")
    synchronize(device)
    began = time.perf_counter()
    tokens = stream(model, prompts, max_tokens=None, sampling=SamplingConfig(temperature=0.0))
    synchronize(device)
    prompt_seconds = time.perf_counter() - began
    # A round's cost depends on its position in a chunk, so whole chunks are timed.
    warm = laps(tokens.next_round, max(LEAST_WARM_UP, chunk), device)
    likely = min(warm["median_seconds"], laps(tokens.next_round, 3, device)["median_seconds"])
    count = repeats or math.ceil(num_laps(likely) / chunk) * chunk
    say(f"{subject.recipe.name}: {count} tokens of {num_rows} rows")
    found = laps(tokens.next_round, count, device)
    return {
        "num_prompt_tokens": length,
        "prompt_seconds": prompt_seconds,
        **found,
        "tokens_per_second": num_rows / found["mean_seconds"],
        **_memory(device),
    }


# Headings, each with the key of its values, their unit and how to write them.
COLUMNS = {
    "parameters\nmillions": ("num_parameters", 1e-6, "{:.2f}"),
    "first\ns": ("first_update_after_seconds", 1, "{:.1f}"),
    "mean\nms": ("mean_seconds", 1e3, "{:,.2f}"),
    "median\nms": ("median_seconds", 1e3, "{:,.2f}"),
    "tokens\n/s": ("tokens_per_second", 1, "{:,.0f}"),
    "of\npeak": ("share_of_peak", 100, "{:.1f}%"),
    "memory\nGiB": ("peak_memory_bytes", 2**-30, "{:.2f}"),
}


def result_table(report: Plain) -> "Table":
    """The report for a terminal."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    grid.add_column("recipe", max_width=30, overflow="fold")
    for heading in COLUMNS:
        grid.add_column(heading, justify="right", no_wrap=True)
    for row in report["rows"]:
        text = Text(f"{row['name']}\n{row['what']}")
        if "failure" in row:
            text.append(f"\n{row['failure']}", style="red")
        cells = [
            form.format(unit * row[key]) if key in row else "-"
            for key, unit, form in COLUMNS.values()
        ]
        grid.add_row(text, *cells)
    return grid


def describe_machine(report: Plain) -> str:
    """The machine, and its peaks."""
    known, peaks = report["environment"], report["peaks"]
    words = f"{known['device']}, torch {known['packages'].get('torch', '?')}"
    if "failure" in peaks:
        return f"{words}; peaks: {peaks['failure']}"
    products = [
        f"{name} products of {one['size']}³ {one['flops_per_second'] / 1e12:.3g} TFLOP/s"
        for name, one in peaks.items()
    ]
    return "; ".join([words, *products])
