"""Times of updates and decoding, memory, and the share of the device's peak.

    python benchmarks/bench.py engine/reddit parity/lstm --decode training.num_lanes=8

Tokens are random, so no corpus is needed. The set `engine` has the four sizes at which the authors'
public code was timed, `relative` the models of the Reddit table at one size. In both, dropout is 0
and numbers are bfloat16 on a GPU, float32 on a CPU. `docs/performance.md` explains the columns.
"""

import argparse
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
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from staircase_attention.batches import Batch
from staircase_attention.checks import InputError, check_choice, check_integer
from staircase_attention.cli.arguments import parse_assignments
from staircase_attention.experiments.catalog import find_recipe, recipes
from staircase_attention.experiments.estimate import carries_state, lane_cost, num_symbols
from staircase_attention.files import check_can_write, write_json
from staircase_attention.generation import SamplingConfig, stream
from staircase_attention.training import LSTMModel, Recipe
from staircase_attention.training.learner import Learner, build_model, precision_of
from staircase_attention.training.optimizer import learning_rate
from staircase_attention.training.processes import Processes, choose_device
from staircase_attention.training.run_folder import environment

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
# Headings, each with the key of its values, their unit and how to write them.
COLUMNS = {
    "Mparam": ("num_parameters", 1e-6, "{:.2f}"),
    "first s": ("first_update_after_seconds", 1, "{:.1f}"),
    "mean ms": ("mean_seconds", 1e3, "{:,.2f}"),
    "median": ("median_seconds", 1e3, "{:,.2f}"),
    "tokens/s": ("tokens_per_second", 1, "{:,.0f}"),
    "peak": ("share_of_peak", 100, "{:.1f}%"),
    "GiB": ("peak_memory_bytes", 2**-30, "{:.2f}"),
}


def find(names: Iterable[str], overrides: Mapping[str, Any], device: torch.device) -> list[Recipe]:
    """The recipes, sets and rows of sets with these names, each once, checked."""
    rows = {f"{name}/{row}": size for name, one in SETS.items() for row, size in one.items()}
    found: dict[str, Recipe] = {}
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
            found[full] = recipe = recipe.override(overrides)
            # Settings that cannot be built are refused before anything is timed.
            with torch.device("meta"):
                build_model(recipe, num_symbols(recipe))
    return list(found.values())


def run(
    chosen: Iterable[Recipe],
    device: torch.device,
    *,
    updates: bool = True,
    batches: Iterable[int] = (),
    repeats: int | None = None,
    output: Path | None = None,
    say: Say = print,
) -> Plain:
    """Time recipes one after another; what fails is reported and stops nothing else.

    `batches` are rows that are decoded together, one number after another. The file is written
    after every measurement, so that a kill costs one at most.
    """
    chosen, known = list(chosen), environment()
    report: Plain = {
        "format": FORMAT,
        "written": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "command": shlex.join(known.pop("command")),
        "environment": known | {"num_cores": os.cpu_count(), "cuda": torch.version.cuda},
        "peaks": attempt(measure_peaks, device, {one.training.precision for one in chosen}),
        "rows": [],
    }
    for recipe in chosen:
        actions: dict[str, Callable[..., Plain]] = {"updates": time_updates} if updates else {}
        for number in batches:
            actions[f"decoding, batch {number}"] = functools.partial(time_decoding, num_rows=number)
        for what, action in actions.items():
            times = attempt(action, recipe, device, repeats, say)
            peak = report["peaks"].get(recipe.training.precision)
            if peak and "flops_per_second" in times:
                times["share_of_peak"] = times["flops_per_second"] / peak["flops_per_second"]
            row = {"name": recipe.name, "what": what, "recipe": recipe.to_plain()}
            report["rows"].append(row | asdict(num_symbols(recipe)) | times)
            if output is not None:
                write_json(output, report)
    return report


def attempt(action: Callable[..., Plain], *values: object) -> Plain:
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
        found = action(*values)
        return found | ({"memory_before_bytes": before} if "peak_memory_bytes" in found else {})
    except Exception as error:
        text = " ".join(str(error).split())[:160]
        # The CPU's allocator raises a plain RuntimeError.
        is_memory = isinstance(error, (torch.OutOfMemoryError, MemoryError))
        is_memory |= "not enough memory" in text
        reason = "out of memory" if is_memory else f"{type(error).__name__}: {text}"
        return {"failure": reason, "traceback": "".join(traceback.format_exception(error))}


def laps(action: Callable[[], object], count: int, device: torch.device) -> Plain:
    """Time an action repeatedly: the device's events on a GPU, the wall clock elsewhere.

    The total is by the wall clock, with the device synchronised before and after; in between
    nothing waits.
    """
    is_cuda = device.type == "cuda"

    def mark() -> Any:  # noqa: ANN401
        if not is_cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
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
    # Events count milliseconds.
    each = [a.elapsed_time(b) / 1e3 if is_cuda else b - a for a, b in itertools.pairwise(marks)]
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
    """How many laps of about these seconds are timed."""
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


def peak_memory(device: torch.device) -> Plain:
    """The most memory that was taken, and by what."""
    if device.type == "cuda":
        peak, of = torch.cuda.max_memory_allocated(device), "tensors on the GPU"
    else:
        # Linux counts kibibytes, macOS bytes.
        unit = 1 if sys.platform == "darwin" else 1024
        peak = unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        of = "the whole process since it began"
    return {"peak_memory_bytes": peak, "peak_memory_of": of}


def chunk_and_reach(recipe: Recipe) -> tuple[int, int]:
    """C of its schedule, and the tokens after which a bounded state has its full size."""
    if isinstance(recipe.model, LSTMModel):
        return 1, 1
    return recipe.model.schedule.chunk_length, recipe.model.schedule.default_max_distance


def num_warm_up(recipe: Recipe) -> int:
    """Updates until the state has had all the shapes that it takes, and some more.

    Where a segment is not a whole number of chunks, several shapes alternate. Each runs once as
    written, and once to be captured.
    """
    length, (chunk, reach) = recipe.training.segment_length, chunk_and_reach(recipe)
    num_shapes = min(16, chunk // math.gcd(chunk, length))
    return max(LEAST_WARM_UP, math.ceil(reach / length) + 2 * (num_shapes - 1) + 3)


def update_flops(recipe: Recipe) -> int:
    """Operations of all lanes of one update; recomputed activations are not counted."""
    model, training, symbols = recipe.model, recipe.training, num_symbols(recipe)
    if isinstance(model, LSTMModel):
        # Per layer: input and state, each times a matrix [width, 4 width], 2 operations per entry.
        gates = model.num_layers * 2 * 4 * 2 * model.width**2
        forward = training.segment_length * (gates + 2 * model.width * symbols.num_outputs)
    else:
        forward = lane_cost(recipe, symbols).flops
    # A backward pass has twice the operations of a forward pass.
    return 3 * training.num_lanes * forward


def time_updates(
    recipe: Recipe,
    device: torch.device,
    repeats: int | None,
    say: Say,
    processes: Processes | None = None,
) -> Plain:
    """Time the trainer's own updates on random tokens, after a warm-up."""
    training, symbols = recipe.training, num_symbols(recipe)
    say(f"{recipe.name}: first update")
    began = time.perf_counter()
    torch.manual_seed(recipe.seed)
    learner = Learner(
        recipe,
        build_model(recipe, symbols),
        device,
        processes or Processes(),
        carries_state=carries_state(recipe),
        report=lambda remark: say(f"{recipe.name}: {remark}"),
    )
    # Four batches, always the same ones.
    generator, shape = np.random.default_rng(0), (training.num_lanes, training.segment_length)
    sizes = (symbols.num_inputs, symbols.num_outputs)
    drawn = [[generator.integers(size, size=shape) for size in sizes] for _ in range(4)]
    batches = itertools.cycle(Batch(inputs=ins, targets=outs) for ins, outs in drawn)
    was_applied: list[bool] = []

    def update() -> None:
        number = min(len(was_applied), training.num_updates - 1)
        rate = learning_rate(training.optimizer, number, training.num_updates)
        lanes = range(training.num_lanes)
        outcome = learner.update(next(batches), lanes=lanes, rate=rate, wants_stop=False)
        was_applied.append(outcome.was_applied)

    laps(update, 1, device)
    first_after = time.perf_counter() - began
    say(f"{recipe.name}: {num_warm_up(recipe)} more to warm up")
    warm_up = laps(update, num_warm_up(recipe), device)["seconds_each"]
    # Of the last two, one may have been slow by chance.
    count = repeats or num_laps(min(warm_up[-2:]))
    say(f"{recipe.name}: {count} updates")
    found = laps(update, count, device)
    return {
        "first_update_after_seconds": first_after,
        **found,
        "tokens_per_second": math.prod(shape) / found["mean_seconds"],
        "flops_per_second": update_flops(recipe) / found["mean_seconds"],
        **peak_memory(device),
        "num_skipped_updates": was_applied.count(False),
        "num_parameters": sum(one.numel() for one in learner.model.parameters()),
    }


def time_decoding(
    recipe: Recipe, device: torch.device, repeats: int | None, say: Say, *, num_rows: int
) -> Plain:
    """Time new tokens of several rows, after random prompts that fill every window."""
    torch.manual_seed(recipe.seed)
    model = build_model(recipe, num_symbols(recipe))
    model = model.to(device=device, dtype=precision_of(recipe)).eval()
    chunk, reach = chunk_and_reach(recipe)
    # Whole chunks, and one token that goes in with the first round.
    length = math.ceil(max(LEAST_PROMPT, reach) / chunk) * chunk + 1
    generator = torch.Generator().manual_seed(0)
    prompts = torch.randint(num_symbols(recipe).num_inputs, (num_rows, length), generator=generator)
    say(f"{recipe.name}: prompts of {num_rows} rows")
    synchronize(device)
    began = time.perf_counter()
    tokens = stream(model, prompts, max_tokens=None, sampling=SamplingConfig(temperature=0.0))
    synchronize(device)
    prompt_seconds = time.perf_counter() - began
    # A round's cost depends on its position in a chunk, so whole chunks are timed.
    warm = laps(tokens.next_round, max(LEAST_WARM_UP, chunk), device)
    likely = min(warm["median_seconds"], laps(tokens.next_round, 3, device)["median_seconds"])
    count = repeats or math.ceil(num_laps(likely) / chunk) * chunk
    say(f"{recipe.name}: {count} tokens of {num_rows} rows")
    found = laps(tokens.next_round, count, device)
    return {
        "num_prompt_tokens": length,
        "prompt_seconds": prompt_seconds,
        **found,
        "tokens_per_second": num_rows / found["mean_seconds"],
        **peak_memory(device),
    }


def table(report: Plain) -> Iterator[str]:
    """The machine, its peaks, and a line per row."""
    known, peaks = report["environment"], report["peaks"]
    yield f"{known['device']}, torch {known['packages'].get('torch', '?')}"
    for name, one in {} if "failure" in peaks else peaks.items():
        yield f"{name} products of {one['size']}³: {one['flops_per_second'] / 1e12:.3g} TFLOP/s"
    yield f"{'recipe':44}" + "".join(f"{heading:>10}" for heading in COLUMNS)
    for row in report["rows"]:
        cells = [
            form.format(unit * row[key]) if key in row else "-"
            for key, unit, form in COLUMNS.values()
        ]
        name = row["name"] + row["what"].replace("updates", "").replace("decoding", "")
        yield f"{name:44}" + (row.get("failure") or "".join(f"{cell:>10}" for cell in cells))


def main() -> None:
    """Time what is asked for, print a table and write all numbers; status 1 if anything failed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    words = "recipes, `engine`, `relative`, rows of these as engine/reddit; settings to change"
    parser.add_argument("words", nargs="+", metavar="RECIPE|PATH=VALUE", help=words)
    parser.add_argument("--no-updates", action="store_true", help="time no updates")
    parser.add_argument("--decode", action="store_true", help="time decoding as well")
    parser.add_argument("--batch", type=int, action="append", help="rows together; default: 1, 64")
    parser.add_argument("--repeats", type=int, help="updates or tokens; default: about 3 seconds")
    parser.add_argument("--output", type=Path, help="JSON file for all numbers, as bench.json")
    parser.add_argument("--quiet", action="store_true", help="show no progress")
    options = parser.parse_args()
    try:
        if options.no_updates and not options.decode:
            parser.error("nothing to time; leave --no-updates out, or add --decode")
        if options.batch and not options.decode:
            parser.error("--batch is the number of rows to decode; add --decode")
        for number in (*(options.batch or ()), 1 if options.repeats is None else options.repeats):
            check_integer("--batch and --repeats", number, minimum=1, example=64)
        if options.output is not None:
            check_can_write(options.output, "--output")
        device = choose_device()
        overrides = parse_assignments(word for word in options.words if "=" in word)
        chosen = find([word for word in options.words if "=" not in word], overrides, device)
    except InputError as error:
        parser.error(str(error))
    report = run(
        chosen,
        device,
        updates=not options.no_updates,
        batches=(options.batch or (1, 64)) if options.decode else (),
        repeats=options.repeats,
        output=options.output,
        say=lambda text: None if options.quiet else print(text, file=sys.stderr, flush=True),
    )
    print("\n".join(table(report)))
    sys.exit(any("failure" in part for part in (report["peaks"], *report["rows"])))


if __name__ == "__main__":
    main()
