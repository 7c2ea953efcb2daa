"""What exits per token and self-speculation gain: passes and time, beside a fixed number of passes.

    python benchmarks/compute_where_needed.py exits RUN --passes 1,2,3,4,6,8 --tokens 5000000
    python benchmarks/compute_where_needed.py drafts RUN --draft-passes 1,2 --draft-tokens 4,8

`exits` scores a Ladder, best one trained with `training.passes`, at fixed depths and with exits at
several thresholds from its deepest: loss, mean passes, and tokens per second of the evaluation.
`drafts` continues a prompt at temperature 0 without drafts and with them: tokens per second, the
share of drafts that were accepted, and whether the tokens are the same. On a GPU numbers are
bfloat16 where the run was trained so; as many tokens before those of drafts are not timed.
"""

import argparse
import math
import time
from collections.abc import Iterator
from functools import partial

import torch

from staircase_attention.engine import accelerate
from staircase_attention.generation import SamplingConfig, stream
from staircase_attention.models import ExitBackend, SequenceModel, with_exits
from staircase_attention.training import LoadedRun, load_language_model, load_run
from staircase_attention.training.processes import choose_device
from staircase_attention.training.trainer import score_split

# Tokens of a corpus that are scored before those that are timed.
WARM_UP = 65_536
CONFIDENCES = (0.3, 0.5, 0.7, 0.9, 0.97, 0.99, 0.999)
CHANGES = (0.1, 0.2, 0.3, 0.5, 0.7)
# A line is seen at once, also where a run is cut short.
say = partial(print, flush=True)


def numbers(text: str) -> list[int]:
    """As 1,2,4."""
    return [int(part) for part in text.split(",")]


def now() -> float:
    """Seconds, after all that the device was given."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


def rivals(model: SequenceModel, passes: list[int]) -> Iterator[tuple[str, SequenceModel]]:
    """The same weights at fixed depths, and with exits from the deepest."""
    models = [model.with_schedule(model.schedule.with_passes(number)) for number in passes]
    for number, one in zip(passes, models, strict=True):
        yield f"{number} passes", one
    for threshold in CONFIDENCES:
        yield f"confidence > {threshold}", with_exits(models[-1], "confidence", threshold)
    for threshold in CHANGES:
        yield f"change < {threshold}", with_exits(models[-1], "change", threshold)


def score_exits(
    run: LoadedRun, passes: list[int], num_tokens: int | None, lanes: int | None
) -> None:
    """Print a table of loss against mean passes."""
    device = choose_device(None)
    assert isinstance(run.model, SequenceModel)
    model = accelerate(run.model.to(device)) if device.type == "cuda" else run.model
    changes: dict[str, object] = {}
    if device.type != "cuda":
        changes["training.precision"] = "float32"
    if lanes is not None:
        changes["training.evaluation_lanes"] = lanes
    recipe = run.recipe.override(changes)
    say("| | mean passes | loss | bits | error | answers per second |\n|---|---|---|---|---|---|")
    score_test = partial(score_split, data=run.data, split="test", recipe=recipe, device=device)
    for name, one in rivals(model, passes):
        # Kernels are compiled before anything is timed.
        score_test(one, num_tokens=num_tokens and min(num_tokens, WARM_UP))
        exits, fixed = one.backend, getattr(one.schedule, "num_passes", 1)
        if isinstance(exits, ExitBackend):
            exits.num_passes = exits.num_tokens = 0
        start = now()
        score = score_test(one, num_tokens=num_tokens)
        rate, bits = score.num_answers / (now() - start), score.loss / math.log(2)
        mean = exits.num_passes / exits.num_tokens if isinstance(exits, ExitBackend) else fixed
        facts = f"{mean:.2f} | {score.loss:.4f} | {bits:.4f} | {score.error:.2%} | {rate:,.0f}"
        say(f"| {name} | {facts} |")


def drafts(
    run: str, prompt: str, draft_passes: list[int], draft_tokens: list[int], num_tokens: int
) -> None:
    """Print a table of speeds."""
    language, device = load_language_model(run), choose_device(None)
    model = language.model.to(device)
    if device.type == "cuda":
        model = model.to(torch.bfloat16)
    prompts, greedy = language.encode(prompt), SamplingConfig(temperature=0)

    def timed(draft: tuple[int, int] | None) -> tuple[list[int], float, float]:
        tokens = stream(model, prompts, max_tokens=None, sampling=greedy)
        if draft is not None:
            tokens.speculate(*draft)
        # Decoders have programs for several numbers of drafts; all come up within some runs.
        warm = [new.token for new in tokens.take(num_tokens)]
        start = now()
        found = [new.token for new in tokens.take(num_tokens)]
        speed = num_tokens / (now() - start)
        ahead = tokens.speculation
        return warm + found, speed, ahead.num_accepted / max(1, ahead.num_drafted) if ahead else 0.0

    plain, speed, _ = timed(None)
    say("| draft passes | draft tokens | accepted | tokens per second | gain | same tokens |")
    say(f"|---|---|---|---|---|---|\n| - | - | - | {speed:,.1f} | 1.00 | |")
    for passes in draft_passes:
        for number in draft_tokens:
            found, fast, accepted = timed((passes, number))
            facts = f"{accepted:.1%} | {fast:,.1f} | {fast / speed:.2f} | {found == plain}"
            say(f"| {passes} | {number} | {facts} |")


def main() -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("exits", "drafts"))
    parser.add_argument("run")
    parser.add_argument("--passes", type=numbers, default=[1, 2, 3, 4, 6, 8])
    parser.add_argument("--draft-passes", type=numbers, default=[1, 2])
    parser.add_argument("--draft-tokens", type=numbers, default=[2, 4, 8])
    parser.add_argument("--tokens", type=int)
    parser.add_argument("--lanes", type=int, help="batch size of exits")
    parser.add_argument("--prompt", default="The history of the city begins ")
    given = parser.parse_args()
    if given.what == "exits":
        score_exits(load_run(given.run), given.passes, given.tokens, given.lanes)
    else:
        number = given.tokens or 2048
        drafts(given.run, given.prompt, given.draft_passes, given.draft_tokens, number)


if __name__ == "__main__":
    main()
