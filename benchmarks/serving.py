"""How soon a restored session answers, and what a server does under load.

    python benchmarks/serving.py restore [--run RUN]     first token after 1, 1,000, 100,000 tokens
    python benchmarks/serving.py load [--seconds 300]    64 clients, of which some are killed
    python benchmarks/serving.py rate [--dtype bfloat16] tokens per second beside the bare decoder's
    python benchmarks/serving.py host [--step 0.0011]    the same, beside a device that only waits

The first two start `staircase serve` as a process of its own, on a free port. `load` first computes
every answer alone, without a server, and then compares. `rate` serves random weights of the size of
`enwik8-fast/ladder-4`, or the run that is given, to streaming clients in other processes; the bare
decoder is the same model with as many rows, once fed with a fixed token and once through `stream`.
`host` needs no GPU: a step is a wait, so that what is left is the server's own work.
"""

import argparse
import http.client
import json
import multiprocessing
import random
import re
import selectors
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from staircase_attention import CoreConfig, Ladder, SequenceModel
from staircase_attention.data.tokenisers import ByteTokeniser
from staircase_attention.experiments import find_recipe
from staircase_attention.generation import SamplingConfig, stream, stream_text
from staircase_attention.generation.stepper import ModelState
from staircase_attention.serve import Limits, Server, Service, batching
from staircase_attention.training import LanguageModel, load_language_model
from staircase_attention.training.learner import NumSymbols, build_model
from staircase_attention.training.processes import choose_device

HISTORIES = (1, 1000, 100_000)
WORDS = ["the", "old", "man", "looked", "at", "her", "and", "said", "that", "it", "was", "dark"]
# How many answers have clients that go away.
KILLED = 0.2
# Of `rate`: tokens of each prompt, seconds of each measurement without a server, and clients that
# share a process.
PROMPT, NUM_BYTES = 32, 256
RATE_SECONDS = 3.0
CLIENTS_PER_PROCESS = 16


@contextmanager
def served(run: str, *options: str) -> Iterator[tuple[int, int]]:
    """A server's port and process id."""
    command = [sys.executable, "-m", "staircase_attention", "serve", run, "--port", "0", *options]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    line = process.stderr.readline()
    found = re.search(r":(\d+)/v1", line)
    assert found, line
    try:
        yield int(found[1]), process.pid
    finally:
        process.terminate()
        process.wait()


def ask(port: int, body: dict[str, object]) -> dict:
    """A whole answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request("POST", "/v1/completions", json.dumps(body))
    answer = json.loads(connection.getresponse().read())
    connection.close()
    assert "error" not in answer, answer
    return answer


def restore(run: str, repeats: int) -> None:
    """Time the first token after a restore, beyond one decode step: on the clock, and of CPU."""
    draw = random.Random(0)

    def timed(process: int, body: dict[str, object]) -> tuple[float, float]:
        begin, begin_cpu = time.perf_counter(), cpu_seconds(process)
        ask(port, body)
        return time.perf_counter() - begin, cpu_seconds(process) - begin_cpu

    def report(name: str, process: int) -> None:
        for history in HISTORIES:
            # Nothing new to read: the session's last token gives the first one.
            body = {"prompt": "", "session": f"after-{history}"}
            # By turns, because the machine may have other work.
            pairs = [
                (
                    timed(process, {**body, "max_tokens": 1}),
                    timed(process, {**body, "max_tokens": 33}),
                )
                for _ in range(repeats)
            ]
            for clock, kind in enumerate(("clock", "CPU")):
                first, longer = (
                    statistics.median(pair[place][clock] for pair in pairs) for place in (0, 1)
                )
                step = (longer - first) / 32
                print(
                    f"{name}, {history:>7,} tokens, {kind}: first token {1e3 * first:.1f} ms, "
                    f"step {1e3 * step:.1f} ms, beyond it {1e3 * (first - step):.1f} ms",
                    flush=True,
                )

    with tempfile.TemporaryDirectory() as folder:
        with served(run, "--sessions", folder) as (port, process):
            ask(port, {"prompt": "warm up", "max_tokens": 8})
            for history in HISTORIES:
                # One token is what texts begin with.
                prompt = [draw.randrange(100) for _ in range(history - 1)]
                ask(port, {"prompt": prompt, "max_tokens": 1, "return_state": f"after-{history}"})
            report("in memory", process)
        sizes = [path.stat().st_size for path in sorted(Path(folder).iterdir())]
        print("files of", ", ".join(f"{size:,}" for size in sizes), "bytes")
        with served(run, "--sessions", folder) as (port, process):
            ask(port, {"prompt": "warm up", "max_tokens": 8})
            report("after a restart", process)


def load(run: str, seconds: float, num_clients: int, num_requests: int) -> None:
    """Answer many clients at once, compare every answer, and watch the memory."""
    draw = random.Random(0)
    language = load_language_model(run)
    end = language.tokeniser.end_symbol
    stops = [] if end is None else [end]
    cases = []
    for number in range(num_requests):
        prompt = " ".join(draw.choices(WORDS, k=draw.randint(1, 60)))
        options = {"temperature": 0} if number % 2 else {"temperature": 1.0, "top_p": 0.95}
        max_tokens = draw.randint(4, 48)
        made = stream_text(
            language.model,
            prompt,
            encode=language.encode,
            decode=language.decode,
            max_tokens=max_tokens,
            sampling=SamplingConfig(**options, seed=number),
            stop_tokens=stops,
            start_token=end,
        )
        body = {"prompt": prompt, "max_tokens": max_tokens, "seed": number, **options}
        cases.append((body, "".join(new.text for new in made)))
    print(f"{num_requests} answers computed alone")
    counts: Counter[str] = Counter()
    wrong: list[tuple[dict, str, str]] = []
    # The row of a client that was killed lives on until the next round.
    with served(run, "--max-streams", str(num_clients + num_clients // 4)) as (port, process):
        stop_at = time.monotonic() + seconds

        def client(number: int) -> None:
            chance = random.Random(number)
            while time.monotonic() < stop_at:
                body, expected = chance.choice(cases)
                is_killed = chance.random() < KILLED
                text = answer(port, body, chance.randint(0, 8) if is_killed else None)
                if is_killed or text is None:
                    counts["killed" if is_killed else "refused"] += 1
                    continue
                counts["completed"] += 1
                counts["tokens"] += body["max_tokens"]
                if text != expected:
                    wrong.append((body, expected, text))

        clients = [threading.Thread(target=client, args=(number,)) for number in range(num_clients)]
        for one in clients:
            one.start()
        resident = []
        while time.monotonic() < stop_at:
            time.sleep(min(10.0, seconds / 10))
            resident.append(resident_mib(process))
            print(f"{dict(counts)} resident {resident[-1]:.0f} MiB, {len(wrong)} wrong", flush=True)
        for one in clients:
            one.join()
    third = len(resident) // 3
    early, late = (statistics.median(part) for part in (resident[third:-third], resident[-third:]))
    print(
        f"{counts['completed']:,} answers ({counts['tokens'] / seconds:.0f} tokens per second at "
        f"most), {counts['killed']:,} killed, {counts['refused']:,} refused, {len(wrong)} wrong; "
        f"resident {early:.0f} MiB in the middle third, {late:.0f} MiB in the last"
    )
    for body, expected, text in wrong[:5]:
        print(json.dumps({"asked": body, "alone": expected, "served": text}))


def rate(run: str | None, seconds: float, num_clients: int, dtype: str) -> None:
    """Compare the tokens per second of all clients with those of a decoder and of a stream."""
    ports: list[multiprocessing.Queue] = []
    context, done = multiprocessing.get_context("fork"), multiprocessing.Queue()
    # Before the GPU is used, which a fork cannot be.
    for first in range(0, num_clients, CLIENTS_PER_PROCESS):
        ports.append(context.Queue())
        count = min(CLIENTS_PER_PROCESS, num_clients - first)
        context.Process(target=listen, args=(count, ports[-1], done), daemon=True).start()
    language = load_language_model(run) if run else random_language()
    device = choose_device(None)
    model = language.model.to(device=device, dtype=getattr(torch, dtype)).eval()
    prompt = [[65] * PROMPT] * num_clients
    tokens = stream(model, prompt, max_tokens=None)
    streamed = num_clients * per_second(tokens.next_round, device)
    decoder, pending = tokens.stepper._current_decoder(), tokens.pending.to(device)
    # A CPU has no decoder.
    step = tokens.next_round if decoder is None else partial(decoder.step, pending)
    bare = num_clients * per_second(step, device)
    del tokens, decoder, step
    max_tokens = max(32, int(seconds * bare / num_clients))
    limits = Limits(max_streams=num_clients, max_tokens=max_tokens)
    service = Service(language, name="model", limits=limits)
    made = service.tokens.labels("made")._value
    server = Server(service, port=0)
    thread = threading.Thread(target=server.run)
    thread.start()
    # Short answers first, so that every decoder's kernels are compiled.
    for length in (32, max_tokens):
        began = time.perf_counter()
        for queue in ports:
            queue.put((server.socket.getsockname()[1], length))
        # Each client tells of its first token, and then of its end.
        for _ in range(num_clients):
            done.get()
        all_began, before = time.perf_counter(), made.get()
        done.get()
        served = (made.get() - before) / (time.perf_counter() - all_began)
        for _ in range(num_clients - 1):
            done.get()
        whole = num_clients * length / (time.perf_counter() - began)
    server.handle_exit(15, None)
    thread.join()
    print(f"{device}, {dtype}, {num_clients} rows, {max_tokens:,} tokens each; tokens per second:")
    print(f"bare decoder {bare:,.0f}, stream {streamed:,.0f}, server {served:,.0f}")
    print(f"server / bare decoder {served / bare:.3f}, server / stream {served / streamed:.3f}")
    print(f"with the {all_began - began:.1f} s until all had a first token: {whole:,.0f}")


class WaitingStepper:
    """In place of a `Stepper` of rows on a GPU: a step takes some time after the one before it."""

    def __init__(self, state: ModelState, num_rows: int, step: float) -> None:
        self.state, self.step, self.over = state, step, 0.0
        self.logits = torch.randn(num_rows, 1, NUM_BYTES)

    def ahead(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits at once, though they cannot be looked at before the step is over."""
        self.over = max(time.perf_counter(), self.over) + self.step
        return self.logits[: len(tokens)]

    def ignore(self, _: object) -> None:
        """Rows come and go, and steps settle, without a state."""

    settle = keep = add = ignore


def host(step: float, num_clients: int, num_tokens: int) -> None:
    """Compare the tokens per second of all clients with those of a device that waits."""
    context = multiprocessing.get_context("fork")
    ports = context.Queue()
    context.Process(target=read_all, args=(ports, num_clients), daemon=True).start()
    core = CoreConfig(width=16, num_layers=1, num_heads=1)
    model = SequenceModel(vocab_size=NUM_BYTES, core=core, schedule=Ladder(num_passes=1, span=8))
    language = replace(random_language(), model=model)
    steppers: list[WaitingStepper] = []
    plain_stepper = batching.Stepper

    def new_stepper(model: SequenceModel, state: ModelState, **options: bool) -> object:
        if not options:
            return plain_stepper(model, state)
        steppers.append(WaitingStepper(state, num_clients, step))
        return steppers[-1]

    def reader_of(tokens: torch.Tensor) -> Callable[[], list[int]]:
        over = steppers[-1].over if steppers else 0.0

        def read() -> list[int]:
            time.sleep(max(0.0, over - time.perf_counter()))
            return tokens.tolist()

        return read

    batching.Stepper, batching.sampling.reader_of = new_stepper, reader_of
    limits = Limits(max_streams=num_clients, max_tokens=num_tokens)
    service = Service(language, name="model", limits=limits)
    service.batch.launches_early = True
    server = Server(service, port=0)
    threading.Thread(target=server.run, daemon=True).start()
    ports.put((server.socket.getsockname()[1], num_tokens))
    made, times = service.tokens.labels("made")._value, []
    # The first and the last answers are not all there at once.
    for part in (0.1, 0.9):
        while made.get() < part * num_clients * num_tokens:
            time.sleep(0.01)
        times.append((time.perf_counter(), made.get()))
    (begin, before), (end, after) = times
    served, device = (after - before) / (end - begin), num_clients / step
    print(f"a step of {1e3 * step:.2f} ms for {num_clients} rows; tokens per second:")
    print(f"device {device:,.0f}, server {served:,.0f}, server / device {served / device:.3f}")


def read_all(ports: multiprocessing.Queue, num_clients: int) -> None:
    """Clients that only read, in one thread: they take little time from the server."""
    port, num_tokens = ports.get()
    chosen = selectors.DefaultSelector()
    for seed in range(num_clients):
        client = socket.create_connection(("127.0.0.1", port))
        asked = {"prompt": "A" * PROMPT, "max_tokens": num_tokens, "stream": True, "seed": seed}
        body = json.dumps(asked).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: here\r\nContent-Length: {len(body)}"
        client.sendall(head.encode() + b"\r\n\r\n" + body)
        chosen.register(client, selectors.EVENT_READ)
    while chosen.get_map():
        for key, _ in chosen.select():
            if b"[DONE]" in key.fileobj.recv(1 << 16):
                chosen.unregister(key.fileobj)


def random_language() -> LanguageModel:
    """Bytes, and weights as they are before training."""
    tokeniser = ByteTokeniser(has_end_symbol=False)
    recipe = find_recipe("enwik8-fast/ladder-4")
    symbols = NumSymbols(num_inputs=tokeniser.vocab_size, num_outputs=tokeniser.vocab_size)
    model = build_model(recipe, symbols)
    return LanguageModel(recipe=recipe, model=model, tokeniser=tokeniser, update=0)


def per_second(call: Callable[[], object], device: torch.device) -> float:
    """How often it can be called, over some seconds after a warm-up."""
    for count in (20, None):
        if device.type == "cuda":
            torch.cuda.synchronize()
        began, number = time.perf_counter(), 0
        while number != count and time.perf_counter() - began < RATE_SECONDS:
            call()
            number += 1
        if device.type == "cuda":
            torch.cuda.synchronize()
    return number / (time.perf_counter() - began)


def listen(num_clients: int, ports: multiprocessing.Queue, done: multiprocessing.Queue) -> None:
    """Clients of one process: each asks on request."""

    def client(port: int, max_tokens: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port)
        body = {"prompt": "A" * PROMPT, "max_tokens": max_tokens, "stream": True}
        connection.request("POST", "/v1/completions", json.dumps(body))
        response = connection.getresponse()
        assert response.status == http.client.OK, response.read()
        response.readline()
        done.put("first")
        response.read()
        done.put("end")

    while True:
        told = ports.get()
        for _ in range(num_clients):
            threading.Thread(target=client, args=told).start()


def answer(port: int, body: dict[str, object], num_events: int | None) -> str | None:
    """A streamed answer; after a number of events the client goes away."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request("POST", "/v1/completions", json.dumps({**body, "stream": True}))
    response = connection.getresponse()
    if response.status != http.client.OK:
        connection.close()
        time.sleep(0.1)
        return None
    text, num_seen = "", 0
    for line in response:
        if num_events is not None and num_seen >= num_events:
            break
        if line.startswith(b"data: {"):
            num_seen += 1
            text += json.loads(line[6:])["choices"][0]["text"]
    # Without reading to the end: the server notices a closed socket.
    connection.close()
    return text


def cpu_seconds(process: int) -> float:
    """Seconds that all threads of a process have run for."""
    files = Path(f"/proc/{process}/task").glob("*/schedstat")
    return sum(int(file.read_text().split()[0]) for file in files) / 1e9


def resident_mib(process: int) -> float:
    """Memory of a process."""
    status = Path(f"/proc/{process}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+)", status)
    assert found
    return int(found[1]) / 1024


def main() -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["restore", "load", "rate", "host"])
    parser.add_argument("--run")
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16", "float16"])
    parser.add_argument("--step", type=float, default=0.0011, help="seconds")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=20)
    given = parser.parse_args()
    run = given.run or "pretrained:novels-and-talk"
    if given.what == "restore":
        restore(run, given.repeats)
    elif given.what == "load":
        load(run, given.seconds or 300, given.clients, given.requests)
    elif given.what == "host":
        host(given.step, given.clients, 1500)
    else:
        rate(given.run, given.seconds or 10, given.clients, given.dtype)


if __name__ == "__main__":
    main()
