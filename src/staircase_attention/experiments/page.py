"""Pages of HTML, each one file that loads nothing from elsewhere; and the page of a single run."""

import json
import math
from collections.abc import Mapping, Sequence
from functools import partial
from html import escape
from pathlib import Path
from typing import Any

import torch

from staircase_attention import evaluation
from staircase_attention.batches import IGNORED
from staircase_attention.checks import check_integer, input_error
from staircase_attention.data import Corpus
from staircase_attention.display import clock
from staircase_attention.experiments.estimate import lane_cost
from staircase_attention.experiments.results import ERROR, LOSS, parse_lines, scores
from staircase_attention.files import write_whole
from staircase_attention.generation import SamplingConfig, TokenStream, stream_text
from staircase_attention.generation.stepper import placed
from staircase_attention.inspect import Place, inspect, lens, lens_figure
from staircase_attention.models import SequenceModel
from staircase_attention.training import FamilyModel, RunFolder, RunResult, choose_device
from staircase_attention.training.dataset import SplitName, TaskData
from staircase_attention.training.learner import Model, precision_of
from staircase_attention.training.loading import LanguageModel, LoadedRun, load_run

STYLE = """
:root { color-scheme: light dark }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem }
table { border-collapse: collapse; display: block; overflow-x: auto; white-space: nowrap }
th, td { padding: .2rem .7rem .2rem 0; text-align: right; border-bottom: 1px solid #8884 }
th:first-child, td:first-child { text-align: left }
figure { margin: 1.5rem 0 } img { max-width: 100%; background: white }
figcaption { opacity: .7 } pre { overflow-x: auto; white-space: pre-wrap }
"""
# Of a page's test episode or text: tokens shown, and tokens scored by position.
MOST_SHOWN, MOST_SCORED = 64, 1 << 15
NUM_SAMPLES, SAMPLE_TOKENS, PROMPT_WORDS = 3, 200, 3
SAMPLING = SamplingConfig(temperature=0.7, top_p=0.8)
# White space that would not be seen.
VISIBLE = str.maketrans({" ": "␣", "\n": "↵", "\t": "⇥"})


def page(heading: str, parts: Sequence[str]) -> bytes:
    """A whole page."""
    meta = '<meta charset="utf-8"><meta name="viewport" content="width=device-width">'
    head = f"{meta}<title>{escape(heading)}</title><style>{STYLE}</style>"
    body = "\n".join([f"<h1>{escape(heading)}</h1>", *filter(None, parts)])
    text = f'<!doctype html>\n<html lang="en"><head>{head}</head><body>\n{body}\n</body></html>\n'
    return text.encode()


def table(rows: Sequence[Mapping[str, str]], heading: str = "") -> str:
    """Rows of cells by heading; a row may lack some."""
    if not rows:
        return ""
    names = [*dict.fromkeys(name for row in rows for name in row)]
    lines = [("th", names), *(("td", [row.get(name, "-") for name in names]) for row in rows)]
    cells = ("".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in line) for tag, line in lines)
    grid = "\n".join(f"<tr>{line}</tr>" for line in cells)
    return _headed(heading, f"<table>\n{grid}\n</table>")


def listing(heading: str, lines: Sequence[str]) -> str:
    """A heading and a list, where there is something to list."""
    items = "\n".join(f"<li>{escape(line)}</li>" for line in lines)
    return _headed(heading, f"<ul>\n{items}\n</ul>") if lines else ""


def folded(heading: str, plain: object) -> str:
    """Plain data that opens with a click."""
    text = escape(json.dumps(plain, indent=2, ensure_ascii=False))
    return f"<details><summary>{escape(heading)}</summary><pre>{text}</pre></details>"


def _headed(heading: str, text: str) -> str:
    return f"<h2>{escape(heading)}</h2>\n{text}" if heading else text


def write_page(run: Path, *, device: str | None = None) -> Path:
    """Write report.html into the folder of a finished run, and give its path.

    Scores and cost, the curve, an episode with answers or samples, losses by position, the recipe
    and the environment. Whoever calls has just run the code that the recipe names.
    """
    # Imported late: matplotlib takes a second.
    from staircase_attention.experiments.figures import Curve, image, lines_figure

    folder, loaded = RunFolder(run), load_run(run, trust_code=True)
    result, model = folder.read_result(), placed(loaded.model, choose_device(device))
    measure = ERROR if isinstance(loaded.data, TaskData) else LOSS
    named = f"{loaded.recipe.name}, seed {loaded.recipe.seed}"
    lines = list(parse_lines(folder.read_metrics()))
    curve = {"training": Curve(dict(scores(lines, "train", measure)))}
    curve["validation"] = Curve(dict(scores(lines, "valid", measure)))
    curve = {name: one for name, one in curve.items() if one.points}
    most = None if isinstance(loaded.data, TaskData) else MOST_SCORED
    split: SplitName = "valid" if result.test is None else "test"
    place, by_position = loss_by_position(loaded, split, most)
    points = Curve({number: facts["loss"] for number, facts in by_position.items()})
    label = evaluation.title(split, loaded.data.extent(split, most))
    losses_figure = lines_figure(
        {label: points}, title=named, is_log=True, xlabel=place.capitalize(), ylabel="Loss"
    )
    shown = [table(_facts(result, loaded))]
    if curve:
        unit = measure.unit.capitalize()
        figure = lines_figure(curve, title=named, xlabel="Updates", ylabel=unit)
        shown.append(image(figure, "Learning curve"))
    shown.append(image(losses_figure, "Loss by position"))
    if isinstance(loaded.data, TaskData):
        seen = read_episode(loaded, 0)[:MOST_SHOWN]
        shown.append(image(lens_figure(seen, title=named), "Test episode 0"))
    else:
        corpus, recipe = loaded.data.corpus, loaded.recipe
        tokeniser, update = corpus.tokeniser, loaded.update
        language = LanguageModel(recipe=recipe, model=model, tokeniser=tokeniser, update=update)
        texts = samples(language, prompts(corpus))
        shown.append(listing("Samples, each after three words of the validation text", texts))
    shown.append(folded("Recipe", loaded.recipe.to_plain()))
    shown.append(folded("Environment", folder.read_environment()))
    target = run / "report.html"
    write_whole(target, page(named, shown))
    return target


def _facts(result: RunResult, loaded: LoadedRun) -> list[dict[str, str]]:
    """Scores and cost, a row each."""
    scores = result.scores.items()
    facts = {evaluation.title(split, score): evaluation.measures(score) for split, score in scores}
    facts["ended"] = f"{result.status}, {result.outcome or 'no verdict'}"
    facts["updates"] = f"{result.num_updates:,}; best weights {result.best_update}"
    facts["tokens"] = f"{result.num_tokens:,}"
    facts["time"] = f"{clock(result.wall_seconds)} on {result.device}"
    facts["parameters"] = f"{result.num_parameters:,}"
    if isinstance(loaded.recipe.model, FamilyModel):
        cost = lane_cost(loaded.recipe, loaded.data)
        facts["forward FLOPs per token"] = f"{cost.flops / cost.segment:,.0f}"
        facts["sequential steps per segment"] = f"{cost.num_steps:,} of {cost.segment:,} tokens"
        facts["state"] = f"{cost.state_numbers:,} numbers per stream"
    return [{"Fact": name, "Value": fact} for name, fact in facts.items()]


def loss_by_position(
    loaded: LoadedRun, split: SplitName, num_tokens: int | None = None
) -> tuple[str, dict[int, dict[str, Any]]]:
    """What positions are, and a model's scores on a split by position."""
    config, data = loaded.recipe.training, loaded.data
    device = loaded.model.output.weight.device
    lanes = {"num_lanes": config.evaluation_lanes, "segment_length": config.segment_length}
    deal: Any = partial(data.batches, **lanes, num_tokens=num_tokens)  # type: ignore[arg-type]
    if isinstance(data, TaskData):
        positions = evaluation.episode_positions(data.episodes(split), **lanes)
    else:
        places = evaluation.Places(data.corpus.split(split))
        positions = (batch.targets for batch in deal(places))
    found = evaluation.score_by_position(
        loaded.model,
        deal(split),
        positions,
        carries_state=data.carries_state,
        device=device,
        precision=precision_of(loaded.recipe, device),
    )
    if isinstance(data, TaskData):
        return "position in the episode", {at: one.to_plain() for at, one in found.items()}
    return "position in the document", {
        at: {"loss": one.loss, "bits": one.loss / math.log(2), "num_tokens": one.num_answers}
        for at, one in found.items()
    }


def read_episode(loaded: LoadedRun, number: int) -> list[Place]:
    """What a model would say after each pass of a test episode."""
    data = loaded.data
    if not isinstance(data, TaskData):
        raise input_error("--episode is for tasks", "a run on a corpus", "use --text")
    episodes, task = data.episodes("test"), data.task
    check_integer("--episode", number, minimum=0, maximum=len(episodes) - 1, example=0)
    inputs, targets = episodes[number]
    words = [task.input_symbols[symbol] for symbol in inputs]
    answers = [None if answer == IGNORED else int(answer) for answer in targets]
    return _lens(loaded.model, inputs.tolist(), words, answers, task.output_symbols)


def read_text(language: LanguageModel, text: str) -> list[Place]:
    """What a model would say after each pass of a text."""
    start = language.tokeniser.end_symbol
    tokens = ([] if start is None else [start]) + language.encode(text)
    if not tokens:
        raise input_error("inspect needs a token", repr(text), "give some text")
    parts = (language.decode([token]) for token in range(language.tokeniser.vocab_size))
    names = [part.decode(errors="replace").translate(VISIBLE) or "·" for part in parts]
    words = [names[token] for token in tokens]
    return _lens(language.model, tokens, words, [*tokens[1:], None], names)


def _lens(model: Model, tokens: list[int], *words: Sequence[Any]) -> list[Place]:
    given = torch.tensor([tokens], device=model.output.weight.device)
    with torch.no_grad():
        if isinstance(model, SequenceModel):
            seen = inspect(model.eval(), given)
            logits = [seen.logits_after(number) for number in range(1, seen.num_passes + 1)]
        else:
            # An LSTM has one pass.
            logits = [model.eval()(given)[0]]
        return lens(logits, *words)


def prompts(corpus: Corpus) -> list[str]:
    """Some words from places that are spread over the validation text."""
    split, found = corpus.split("valid"), []
    for number in range(NUM_SAMPLES):
        start = number * split.num_tokens // NUM_SAMPLES
        tokens = split.tokens(start, min(start + 16 * PROMPT_WORDS, split.num_tokens))
        ends = [place for place, token in enumerate(tokens) if token == corpus.tokeniser.end_symbol]
        text = corpus.tokeniser.decode(tokens[: ends[0]] if ends else tokens)
        # The first word may lack its beginning.
        found.append(" ".join(text.decode(errors="ignore").split()[1 : PROMPT_WORDS + 1]))
    return found


def continued(
    language: LanguageModel,
    prompts: Sequence[str],
    **options: Any,  # noqa: ANN401
) -> TokenStream:
    """The texts by which a model continues prompts; see `stream_text` for the options."""
    end = language.tokeniser.end_symbol
    return stream_text(
        language.model,
        # A text without an end symbol has no beginning either: start a line.
        [prompt or "\n" for prompt in prompts] if end is None else prompts,
        encode=language.encode,
        decode=language.decode,
        stop_tokens=[] if end is None else [end],
        # In training a document follows the end of another.
        start_token=end,
        **options,
    )


def samples(language: LanguageModel, prompts: Sequence[str]) -> list[str]:
    """Prompts, each with its continuation."""
    texts = list(prompts)
    for new in continued(language, prompts, max_tokens=SAMPLE_TOKENS, sampling=SAMPLING):
        texts[new.row] += new.text
    return texts
