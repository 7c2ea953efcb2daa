"""The page computes what the package computes: in Node, and in Chromium where there is one."""

import html
import json
import random
import re
import shutil
import subprocess
import threading
import urllib.error
import urllib.parse
import urllib.request
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch

from staircase_attention import CoreConfig, inspect
from staircase_attention.cli.schedules import costs
from staircase_attention.models.depth import at_depth
from staircase_attention.play import PageHandler, page_files, write_page
from staircase_attention.schedules import SCHEDULES, Ledger, make_schedule
from staircase_attention.training import load_language_model, load_run

HERE = Path(__file__).parent
CORE = {"width": 64, "numHeads": 4, "vocabSize": 50}
TEXTS = ["Once upon a time, it's 1839:\n\n  «déjà vu»", "", "a", "  two  spaces \n"]
TEXT_MODELS = ("novels-and-talk-dial", "novels-and-talk")
ODD = "« Ça va ? » 🙂 日本"
WORD = 24
CHROMIUM = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--enable-logging=stderr"),
)


def drawn_options(name, generator):
    """Options of a schedule, within the page's sliders."""
    number, options = generator.randint, {}
    for option in SCHEDULES[name].__dataclass_fields__:
        if option == "num_passes":
            window = options.get("num_window_chunks", 6)
            options[option] = number(0 if "cached" in name else 1, window)
        elif option in ("chunk_size", "num_window_chunks", "span"):
            options[option] = number(1, 8)
        elif option == "order":
            options[option] = generator.choice(["ABAB", "AABB"])
    return options


def walked(num_actions):
    """START and random actions."""
    generator = random.Random(3)
    return [0, *(generator.randint(1, 3) for _ in range(num_actions))]


@pytest.fixture(scope="module")
def request_of_all():
    """What both engines are asked: costs and steps of drawn schedules, models, texts."""
    generator = random.Random(0)
    asked, steps = [], []
    for name in [*SCHEDULES] * 2:
        core = CORE | {"numLayers": 1 if name == "universal-transformer" else 3}
        core["segment"] = generator.choice([1, 7, 16, 48])
        asked.append({"name": name, "core": core, **drawn_options(name, generator)})
        order = generator.choice(["window", "chunk"])
        length = generator.randint(1, 20)
        steps.append(
            {"name": name, "tokens": length, "order": order, **drawn_options(name, generator)}
        )
    word = [0, *(1 + place // 3 % 2 for place in range(WORD))]
    models = {
        "random-walk-staircase": walked(80),
        "random-walk-transformer-xl": walked(280),
        "parity-staircase": word,
        "parity-transformer-xl": word,
        **{name: [1023, *range(40, 40 + WORD)] for name in TEXT_MODELS},
    }
    turned = [
        {"passes": passes, "tokens": generator.choices(range(1024), k=generator.randint(1, 6))}
        for passes in generator.sample(range(1, 9), 5)
    ]
    # Positions of the dial from the first token on, then all of them within one text.
    dials = {name: [*([one] for one in turned), turned] for name in TEXT_MODELS}
    return {"costs": asked, "steps": steps, "models": models, "dials": dials, "texts": TEXTS}


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    write_page(folder)
    # Older versions of Node take files for modules only where this says so.
    (folder / "package.json").write_text('{"type": "module"}')
    return folder


@pytest.fixture(scope="module")
def by_node(request_of_all, site):
    node = shutil.which("node")
    if node is None:
        pytest.skip("needs Node.js")
    for name in ("check.js", "check.mjs"):
        shutil.copy(HERE / name, site)
    words = [node, site / "check.mjs", site]
    given = json.dumps(request_of_all)
    return json.loads(
        subprocess.run(words, input=given, capture_output=True, text=True, check=True).stdout
    )


class TestHandler(SimpleHTTPRequestHandler):
    """Serves a folder. An image that is not there yet keeps a page loading until it is done."""

    __test__ = False

    def __init__(self, is_done, *arguments, **options):
        self.is_done = is_done
        super().__init__(*arguments, **options)

    def do_GET(self):
        if self.path not in ("/wait", "/done"):
            return super().do_GET()
        _ = self.is_done.set() if self.path == "/done" else self.is_done.wait(200)
        return self.send_error(204)

    def log_message(self, *_):
        pass


@contextmanager
def serving(handler):
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


def browse(site, name, profile):
    """What a page of the tests writes once its scripts are done, and the console."""
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("needs Chromium: run make test-page")
    for file in HERE.glob("*.html"):
        shutil.copy(file, site)
    shutil.copy(HERE / "check.js", site)
    with serving(partial(TestHandler, threading.Event(), directory=site)) as address:
        words = [chromium, *CHROMIUM, f"--user-data-dir={profile}", "--dump-dom", address + name]
        done = subprocess.run(words, capture_output=True, text=True, timeout=240)
    console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    return json.loads(
        html.unescape(re.search(r"<pre>(.*)</pre>", done.stdout, re.DOTALL)[1])
    ), console


@pytest.fixture(scope="module")
def by_chromium(request_of_all, site, tmp_path_factory):
    (site / "request.json").write_text(json.dumps(request_of_all))
    answers, console = browse(site, "check.html", tmp_path_factory.mktemp("profile"))
    assert console == []
    return answers


@pytest.mark.parametrize("engine", ["by_node", "by_chromium"])
def test_costs_are_those_of_describe_and_steps_those_of_the_timetable(
    engine, request_of_all, request
):
    answers = request.getfixturevalue(engine)
    for asked, found in zip(request_of_all["costs"], answers["costs"], strict=True):
        options = {key: value for key, value in asked.items() if key not in ("name", "core")}
        schedule, core = make_schedule(asked["name"], options), asked["core"]
        shape = CoreConfig(width=core["width"], num_layers=core["numLayers"], num_heads=4)
        sizes = {"vocab_size": core["vocabSize"], "core": shape, "segment": core["segment"]}
        expected = costs(schedule, "float32", **sizes)
        assert found == {key: expected[key] for key in found}, asked
    for asked, found in zip(request_of_all["steps"], answers["steps"], strict=True):
        options = {key: asked[key] for key in asked.keys() - {"name", "tokens", "order"}}
        steps = make_schedule(asked["name"], options).steps(
            range(asked["tokens"]), num_layers=2, order=asked["order"]
        )
        expected = [
            (*plain(step), [held.start, held.stop]) for step, held in Ledger().follow(steps)
        ]
        assert [(*of_page(step), held) for step, held in found] == expected, asked


def plain(step):
    [frozen] = step.frozen or [range(0)]
    [kept] = step.kept or [range(0)]
    cells = [[cell.chunk, cell.pass_number, *ends(cell.tokens), cell.cached] for cell in step.cells]
    return (step.index, step.bank, ends(step.layers), cells, ends(frozen), ends(kept), step.lags)


def of_page(step):
    cells = [
        [cell["chunk"], cell["pass"], *cell["tokens"], cell["cached"]] for cell in step["cells"]
    ]
    names = ("index", "bank", "layers")
    return (*map(step.get, names), cells, step["frozen"], step["kept"], step["lags"])


def ends(positions):
    return [positions.start, positions.stop] if positions else [0, 0]


@pytest.mark.parametrize("engine", ["by_node", "by_chromium"])
def test_models_say_what_they_say_in_pytorch_after_every_pass(engine, request_of_all, request):
    answers = request.getfixturevalue(engine)["models"]
    for name, tokens in request_of_all["models"].items():
        load = load_language_model if name in TEXT_MODELS else load_run
        # In float64: in float32 PyTorch itself differs from it by up to 1e-3 in one of these.
        model = load(f"pretrained:{name}").model.double()
        with torch.no_grad():
            seen = inspect.inspect(model, torch.tensor([tokens]))
        said = torch.tensor(answers[name]["logits"], dtype=torch.float64)
        for number in range(said.shape[1]):
            expected = seen.logits_after(number + 1)[0]
            torch.testing.assert_close(said[:, number], expected, rtol=0, atol=1e-4)
        print(f"{name}: {answers[name]['rate']:.0f} steps per second")  # noqa: T201


@pytest.mark.parametrize("name", TEXT_MODELS)
@pytest.mark.parametrize("engine", ["by_node", "by_chromium"])
def test_the_dial_changes_the_passes_of_a_stream_as_at_depth_does(
    engine, name, request_of_all, request
):
    answers = request.getfixturevalue(engine)["dials"][name]
    model = load_language_model(f"pretrained:{name}").model.double()
    for turns, answer in zip(request_of_all["dials"][name], answers, strict=True):
        state = None
        for turn, said in zip(turns, answer, strict=True):
            model.schedule = model.schedule.with_passes(turn["passes"])
            state = None if state is None else at_depth(model, state)
            with torch.no_grad():
                seen = inspect.inspect(model, torch.tensor([turn["tokens"]]), state)
            state = seen.state
            expected = [seen.logits_after(number + 1)[0] for number in range(turn["passes"])]
            said = torch.tensor(said, dtype=torch.float64)
            torch.testing.assert_close(said, torch.stack(expected, 1), rtol=0, atol=1e-4)
    schedule = load_language_model(f"pretrained:{name}").model.schedule
    dial = re.search(r'name="passes".*value="(.)"', page_files()["index.html"].read_text())
    assert int(dial[1]) == schedule.num_passes


def test_the_page_cuts_text_as_the_tokeniser_does(by_node):
    encode = load_language_model("pretrained:novels-and-talk").encode
    assert by_node["texts"] == [{"tokens": encode(text), "text": text} for text in TEXTS]


def test_the_server_gives_files_of_the_page_and_no_others():
    with serving(PageHandler) as address:
        for name, path in page_files().items():
            if path.stat().st_size < 100_000:
                with urllib.request.urlopen(address + name) as answer:
                    assert answer.read() == path.read_bytes()
        for name in ("__init__.py", "models/", "models/../../pretrained", "%2e%2e/checks.py"):
            with pytest.raises(urllib.error.HTTPError, match="404"):
                urllib.request.urlopen(address + name)


def test_the_page_is_small_and_loads_nothing_from_elsewhere(site):
    page = [path for name, path in page_files().items() if not name.startswith("models/")]
    assert sum(path.stat().st_size for path in page) < 1e6
    assert sum(path.stat().st_size for path in page_files().values()) < 30e6
    for path in page:
        assert not re.search(r"(src|href|import|fetch|url)\W{1,3}(https?:)?//", path.read_text())


def test_a_visitor_with_a_keyboard_finds_everything_and_no_errors(site, tmp_path):
    asked = f"schedule&walk=25&words&text=5&dial=7&other&prompt={urllib.parse.quote(ODD)}"
    told, console = browse(site, f"drive.html?{asked}", tmp_path)
    assert console == []
    assert told["cell"].startswith("Step 7, x₆ (tokens 21 to 24), pass 2. It sees x₄…x₅")
    assert "parameters25,466,880" in told["cost"]
    assert [caption.split(":")[0] for caption in told["walk"][1:]] == [
        "Staircase",
        "Transformer-XL",
    ]
    assert "Right at 100.0% of 25 steps" in told["walk"][1]
    assert "Staircase 31 of 31" in told["words"]
    assert told["text"].startswith(ODD)
    assert len(told["text"]) < 200
    assert re.search(r"with 4 passes, .* with 7 passes", told["times"])
    assert told["passes"] == 7
    assert told["other"][:2] == ["Load the model (3.5 MB) and write", "Write"]
    assert told["other"][2].startswith(ODD)
    assert told["other"][2] != told["text"]
