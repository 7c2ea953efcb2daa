"""A server gives what the model gives alone, to OpenAI's own client, and remembers sessions."""

import json
import socket
import sys
import threading
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from commands import call as command
from staircase_attention import CoreConfig, Ladder, SequenceModel, Staircase
from staircase_attention.generation import SamplingConfig, stream_text

openai = pytest.importorskip("openai")
pytest.importorskip("starlette")
from staircase_attention.serve import Limits, Server, Service, batching  # noqa: E402

END = 0
"""The token that ends a text, and that texts begin with."""


class Bytes:
    """A byte tokeniser whose end symbol is 0."""

    end_symbol = END


def language(schedule) -> SimpleNamespace:
    torch.manual_seed(0)
    core = CoreConfig(width=16, num_layers=1, num_heads=2)
    model = SequenceModel(vocab_size=128, core=core, schedule=schedule).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, 0.5)
    return SimpleNamespace(
        model=model,
        tokeniser=Bytes(),
        encode=lambda text: list(text.encode()),
        decode=lambda tokens: bytes(int(token) for token in tokens),
    )


LADDER = language(Ladder(num_passes=2, span=6))
STAIRCASE = language(Staircase(chunk_size=3, num_passes=2))


@contextmanager
def serving(language=LADDER, *, api_keys=(), folder=None, grace=10.0, **limits):
    service = Service(
        language,
        name="small",
        limits=Limits(**limits),
        api_keys=api_keys,
        separator="\n",
        folder=folder,
    )
    server = Server(service, port=0, grace=grace)
    server.clients = []
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        yield server
    finally:
        server.handle_exit(15, None)
        thread.join()
        for client in server.clients:
            client.close()


def client_of(server, key="none"):
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0)
    server.clients.append(client)
    return client


def call(server, path, body=None, *, method=None, key=None, scheme="Bearer"):
    """Status, headers and content of a response."""
    content = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"Authorization": f"{scheme} {key}"} if key else {}
    request = urllib.request.Request(f"{server.url}{path}", content, headers=headers, method=method)
    try:
        with urllib.request.urlopen(request) as response:
            return response.status, response.headers, response.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers, error.read()


def within_seconds(is_so):
    """Whether something becomes so."""
    deadline = time.monotonic() + 10
    while not is_so() and time.monotonic() < deadline:
        time.sleep(0.01)
    return is_so()


def alone(language, prompt, max_tokens, **options):
    """The text of a stream without a server."""
    made = stream_text(
        language.model,
        prompt,
        encode=language.encode,
        decode=language.decode,
        max_tokens=max_tokens,
        sampling=SamplingConfig(**options),
        stop_tokens=[END],
        start_token=END,
    )
    return "".join(new.text for new in made)


@pytest.fixture(params=[False, True], ids=["in turn", "ahead"])
def _launching(request, monkeypatch):
    """Steps are launched early, as on a GPU, and sometimes taken back; or not, as on a CPU."""
    monkeypatch.setattr(batching, "accelerate", lambda _: request.param)


@pytest.mark.usefixtures("_launching")
@pytest.mark.parametrize("language", [LADDER, STAIRCASE], ids=["ladder", "staircase"])
def test_each_of_many_answers_is_that_of_the_model_alone(language):
    """Prompts of many lengths, greedy and sampled, streamed and whole, that come and go."""
    generator = np.random.default_rng(0)
    found, wanted = {}, {}

    def ask(server, number):
        length, max_tokens = generator.integers(1, 40), int(generator.integers(1, 20))
        prompt = bytes(generator.integers(97, 122, length).tolist()).decode()
        options = {"temperature": float(number % 3), "seed": number}
        wanted[number] = alone(language, prompt, max_tokens, **options)
        client = client_of(server)
        asked = {"model": "small", "prompt": prompt, "max_tokens": max_tokens, **options}
        if number % 2:
            found[number] = client.completions.create(**asked).choices[0].text
            return
        events = client.completions.create(**asked, stream=True)
        if number % 8 == 0:
            # A client that goes away.
            next(iter(events))
            events.close()
            del wanted[number]
            return
        found[number] = "".join(event.choices[0].text for event in events)

    with serving(language, max_streams=100) as server:
        threads = [threading.Thread(target=ask, args=(server, number)) for number in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == wanted
        assert within_seconds(lambda: not server.service.batch.num_answers)


def test_the_client_of_openai_completes_chats_and_lists():
    with serving() as server:
        client = client_of(server)
        assert [model.id for model in client.models.list()] == ["small"]
        assert client.models.retrieve("small").id == "small"
        asked = {"model": "small", "messages": [{"role": "user", "content": "hello"}], "seed": 3}
        whole = client.chat.completions.create(**asked, max_completion_tokens=30, n=2)
        assert [choice.index for choice in whole.choices] == [0, 1]
        assert len({choice.message.content for choice in whole.choices}) == 2
        assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens
        options = {"stream": True, "stream_options": {"include_usage": True}}
        *events, last = client.chat.completions.create(**asked, max_tokens=30, **options)
        text = "".join(event.choices[0].delta.content for event in events)
        assert text == whole.choices[0].message.content
        assert events[0].choices[0].delta.role == "assistant"
        assert events[-1].choices[0].finish_reason in ("stop", "length")
        assert last.usage.prompt_tokens == len("\0hello\n")
        texts = client.completions.create(
            model="small", prompt=["ab", [99, 100]], max_tokens=9, temperature=0
        )
        assert [choice.text for choice in texts.choices] == [
            alone(LADDER, prompt, 9, temperature=0) for prompt in ("ab", "cd")
        ]
        with pytest.raises(openai.NotFoundError):
            client.models.retrieve("large")


@pytest.mark.usefixtures("_launching")
def test_a_session_continues_forks_and_survives_a_restart(tmp_path):
    prompt, options = "once upon a time", {"temperature": 1.0, "seed": 5}
    whole = alone(LADDER, prompt, 60, **options)

    def ask(server, prompt, max_tokens, **extra):
        [choice] = (
            client_of(server)
            .completions.create(
                model="small", prompt=prompt, max_tokens=max_tokens, extra_body=extra, **options
            )
            .choices
        )
        return choice.text, getattr(choice, "session", None)

    with serving(folder=tmp_path / "sessions") as server:
        first, name = ask(server, prompt, 20, return_state="first")
        assert name == "first"
        assert call(server, "/v1/sessions/first/fork/second", b"")[0] == 201
        assert call(server, "/v1/sessions/first", method="DELETE")[0] == 200
        second, name = ask(server, "", 20, session="second", return_state=True)
        listed = json.loads(call(server, "/v1/sessions")[2])["data"]
        assert {one["id"] for one in listed} == {"second", name}
        assert {one["num_tokens"] for one in listed} == {
            1 + len(prompt) + made for made in (20, 40)
        }
    assert len(list((tmp_path / "sessions").iterdir())) == 2
    (tmp_path / "sessions" / "damaged.safetensors").write_bytes(b"nothing")
    with serving(folder=tmp_path / "sessions") as server:
        # A session is a value: it can be continued more than once.
        for _ in range(2):
            third, _ = ask(server, "", 20, session=name)
            assert first + second + third == whole
        assert call(server, "/v1/sessions/damaged")[0] == 404
        status, _, content = call(server, "/v1/completions", {"session": "first"})
        assert status == 404
        assert "session must be one of" in json.loads(content)["error"]["message"]


@pytest.mark.parametrize("language", [LADDER, STAIRCASE], ids=["ladder", "staircase"])
def test_sessions_are_the_same_if_a_step_was_launched_early_and_taken_back(language, monkeypatch):
    """A stop string ends an answer when the next step has begun."""
    found, settled = [], []
    settle = batching.Stepper.settle
    monkeypatch.setattr(
        batching.Stepper, "settle", lambda self, kept: (settled.append(kept), settle(self, kept))
    )
    for launches in (False, True):
        monkeypatch.setattr(batching, "accelerate", lambda _, launches=launches: launches)
        with serving(language) as server:
            body = {"prompt": "abc", "n": 6, "seed": 3, "max_tokens": 60, "return_state": True}
            body["stop"] = [chr(code) for code in range(48, 52)]
            made = json.loads(call(server, "/v1/completions", body)[2])["choices"]
            for choice in made:
                body = {"session": choice.pop("session"), "temperature": 0, "max_tokens": 9}
                choice["next"] = json.loads(call(server, "/v1/completions", body)[2])["choices"]
            found.append(made)
    assert found[0] == found[1]
    assert 0 in settled


@pytest.mark.usefixtures("_launching")
def test_a_chat_that_continues_a_session_is_that_of_all_messages():
    turns = [{"role": "user", "content": text} for text in ("hi", "so")]
    with serving() as server:
        create = client_of(server).chat.completions.create
        options = {"model": "small", "temperature": 0, "max_tokens": 12}
        one = create(messages=turns[:1], extra_body={"return_state": "talk"}, **options)
        two = create(messages=turns[1:], extra_body={"session": "talk"}, **options)
        reply = {"role": "assistant", "content": one.choices[0].message.content}
        whole = create(messages=[turns[0], reply, turns[1]], **options)
        assert two.choices[0].message.content == whole.choices[0].message.content


def test_a_turn_that_a_stop_of_the_clients_ended_gets_the_separator_it_lacks(monkeypatch):
    fed, answers = [], Service._answers
    monkeypatch.setattr(
        Service,
        "_answers",
        lambda service, job: fed.append(answers(service, job)) or fed[-1],
    )
    with serving() as server:
        create = client_of(server).chat.completions.create
        options = {"model": "small", "temperature": 0, "max_tokens": 12}
        hi, so = ([{"role": "user", "content": text}] for text in ("hi", "so"))
        stop = create(messages=hi, **options).choices[0].message.content[0]
        create(messages=hi, stop=[stop], extra_body={"return_state": "talk"}, **options)
        create(messages=so, extra_body={"session": "talk"}, **options)
    assert bytes(fed[-1][0].tokens.recent[0]).startswith(f"\0hi\n{stop}\nso\n".encode())


def test_each_of_several_answers_continues_with_its_own_draws():
    asked = {"prompt": "abc", "seed": 3, "max_tokens": 30}
    with serving() as server:
        whole = json.loads(call(server, "/v1/completions", asked | {"n": 3})[2])["choices"]
        asked |= {"max_tokens": 10, "n": 3, "return_state": True}
        for begun, expected in zip(
            json.loads(call(server, "/v1/completions", asked)[2])["choices"], whole, strict=True
        ):
            body = {"session": begun["session"], "seed": 3, "max_tokens": 20}
            rest = json.loads(call(server, "/v1/completions", body)[2])["choices"][0]
            assert begun["text"] + rest["text"] == expected["text"]


@pytest.mark.usefixtures("_launching")
@pytest.mark.parametrize("language", [LADDER, STAIRCASE], ids=["ladder", "staircase"])
def test_a_server_that_stops_cuts_answers_short_and_keeps_their_states(language, tmp_path):
    """Also of rows that wait for their place of a chunk."""
    with serving(language, folder=tmp_path, grace=0.0) as server:
        events = client_of(server).completions.create(
            model="small", prompt=["a", "ab", "abc"], max_tokens=4000, stream=True,
            temperature=0, extra_body={"return_state": True},
        )  # fmt: skip
        next(iter(events))
        server.handle_exit(15, None)
        ends = [event.choices[0] for event in events if event.choices[0].finish_reason]
        assert [end.finish_reason for end in ends] == ["length"] * 3
    with serving(language, folder=tmp_path) as server:
        sessions = json.loads(call(server, "/v1/sessions")[2])["data"]
        assert {session["id"] for session in sessions} == {end.session for end in ends}
        assert all(session["num_tokens"] < 4000 for session in sessions)


def test_a_second_signal_gives_answers_no_more_time():
    server = Server(Service(LADDER, name="small"), port=0, grace=5.0)
    server.socket.close()
    server.handle_exit(15, None)
    deadline = server.service.batch.deadline
    server.handle_exit(15, None)
    assert server.service.batch.deadline == deadline < time.monotonic() + 5


def test_a_fault_ends_the_answers_of_its_round_and_no_later_ones(monkeypatch):
    calls, choose = [], batching.Batch._choose

    def fails_once(*arguments):
        calls.append(arguments)
        if len(calls) == 5:
            raise RuntimeError("a fault")
        return choose(*arguments)

    monkeypatch.setattr(batching.Batch, "_choose", fails_once)
    with serving() as server:
        body = {"prompt": "abc", "max_tokens": 9, "temperature": 0}
        assert call(server, "/v1/completions", body)[0] == 500
        assert json.loads(call(server, "/v1/completions", body)[2])["choices"][0]["text"] == alone(
            LADDER, "abc", 9, temperature=0
        )


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"{", "the body must be JSON"),
        ([], "the body must be a JSON object, got list"),
        ({"model": "large"}, "model must be one of small, got 'large'; use"),
        ({"promt": "x"}, "got 'promt'; did you mean 'prompt'?"),
        ({"prompt": {"a": 1}}, "prompt must be a text, a list of token ids"),
        ({"prompt": "\ud800"}, "text must be Unicode"),
        ({"prompt": [1, 999]}, "token ids must be from 0 to vocab_size - 1 = 127"),
        ({"prompt": "x" * 51}, "the tokens of all prompts, times n, must be at most 50, got 51"),
        ({"prompt": "x" * 17, "n": 3}, "times n, must be at most 50, got 51; send less"),
        ({"prompt": ["x" * 13] * 2, "n": 2}, "times n, must be at most 50, got 52; send"),
        ({"prompt": ["x"] * 3, "n": 2}, "prompts, times n, must be at most 4, got 6; send fewer"),
        ({"max_tokens": 0}, "max_tokens must be an integer from 1 to 100, got 0"),
        ({"max_tokens": 101}, "max_tokens must be an integer from 1 to 100, got 101"),
        ({"n": 5}, "n must be an integer from 1 to 4, got 5"),
        ({"temperature": -1}, "temperature must be a number of at least 0, got -1"),
        ({"top_p": "high"}, "top_p must be a number over 0 and of at most 1, got 'high'"),
        ({"stop": [1]}, "a stop string must be a string of at least one character"),
        ({"logprobs": 5}, "a field must be a supported one, got 'logprobs'; leave it out"),
        ({"frequency_penalty": 1}, "a supported one, got 'frequency_penalty'; leave it out"),
        ({"prompt": 5}, "prompt must be a text, a list of token ids, or a list of these, got 5"),
        ({"session": "../up"}, "a session's name must be up to 64 letters"),
        ({"return_state": "a/b"}, "a session's name must be up to 64 letters"),
        ({"n": 2, "return_state": "a"}, "return_state must be true or false where there are"),
        ({"stream": "yes"}, "stream must be True or False, got 'yes'"),
    ],
)
def test_a_wrong_request_is_refused_in_one_line(body, words, strict):
    status, _, content = call(strict, "/v1/completions", body)
    error = json.loads(content)["error"]
    assert status == 400
    assert error["type"] == "invalid_request_error"
    assert words in error["message"]
    assert "\n" not in error["message"]


@pytest.fixture(scope="module")
def strict():
    with serving(max_prompt=50, max_tokens=100, max_streams=4, max_body=200) as server:
        yield server


def test_chat_needs_messages_with_text(strict):
    for messages in (None, [], ["hi"], [{"role": "user"}], [{"content": [{"image": 1}]}]):
        status, _, content = call(strict, "/v1/chat/completions", {"messages": messages})
        assert status == 400
        assert "messages must be a list of" in json.loads(content)["error"]["message"]


def test_sizes_paths_and_methods_are_refused(strict):
    assert call(strict, "/v1/completions", {"prompt": "x" * 300})[0] == 413
    assert call(strict, "/v1/nothing")[0] == 404
    assert call(strict, "/v1/completions")[0] == 405
    assert call(strict, "/v1/sessions/none", method="DELETE")[0] == 404
    assert call(strict, "/health")[0] == 200


@pytest.mark.parametrize("stop", ["x" * 1_001, ["xyz"] * 334], ids=["long", "many"])
def test_stop_strings_that_would_hold_up_other_answers_are_refused(stop):
    with serving() as server:
        status, _, content = call(server, "/v1/completions", {"prompt": "a", "stop": stop})
        assert status == 400
        assert "at most 1,000 characters in all" in json.loads(content)["error"]["message"]


def test_more_streams_than_allowed_are_refused_until_others_have_ended():
    with serving(max_streams=2) as server:
        client = client_of(server)
        ask = {"model": "small", "prompt": "a", "max_tokens": 4000, "temperature": 0}
        streams = [client.completions.create(**ask, stream=True) for _ in range(2)]
        with pytest.raises(openai.RateLimitError) as error:
            client.completions.create(**ask)
        assert error.value.response.headers["retry-after"] == "1"
        for stream in streams:
            stream.close()
        assert within_seconds(lambda: not server.service.batch.num_answers)
        client.completions.create(**{**ask, "max_tokens": 1})


def test_a_whole_answer_ends_when_its_client_goes_away():
    with serving(max_tokens=1_000_000) as server:
        batch, port = server.service.batch, int(server.url.rpartition(":")[2])
        body = json.dumps({"prompt": "a", "max_tokens": 1_000_000, "temperature": 0}).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(head.encode() + body)
            assert within_seconds(lambda: batch.num_answers)
        assert within_seconds(lambda: not batch.num_answers)


def test_keys_rates_and_metrics():
    with serving(api_keys=["one", "two"], rate=3) as server:
        assert call(server, "/health")[0] == 200
        for key in (None, "three", "on", "öne"):
            status, _, content = call(
                server, "/v1/models", key=key and key.encode().decode("latin")
            )
            assert status == 401
            assert "API key" in json.loads(content)["error"]["message"]
        client_of(server, "one").completions.create(model="small", prompt="a", max_tokens=2)
        assert [call(server, "/v1/models", key="one")[0] for _ in range(3)] == [200, 200, 429]
        assert int(call(server, "/v1/models", key="one")[1]["Retry-After"]) in range(1, 61)
        status, headers, content = call(server, "/metrics", key="two", scheme="bearer")
        assert headers["Content-Type"].startswith("text/plain")
        lines = content.decode().splitlines()
        assert 'staircase_requests_total{endpoint="/v1/models",status="401"} 4.0' in lines
        assert 'staircase_tokens_total{kind="read"} 2.0' in lines
        assert "staircase_first_token_seconds_count 1.0" in lines


@pytest.mark.parametrize("keys", [[""], ["one", ""], [" "]])
def test_an_empty_key_is_refused(keys, capsys, monkeypatch):
    words = [word for key in keys for word in ("--api-key", key)]
    assert command("serve", "pretrained:novels-and-talk", *words, "--port", 0) == 2
    assert "an API key must not be empty, got ''; set it" in capsys.readouterr().err
    monkeypatch.setenv("STAIRCASE_API_KEY", keys[-1])
    assert command("serve", "pretrained:novels-and-talk", "--port", 0) == 2
    assert "an API key must not be empty, got ''; set it" in capsys.readouterr().err


def test_a_page_that_somebody_visits_cannot_ask_without_a_key():
    body = json.dumps({"prompt": "a", "max_tokens": 1}).encode()
    # What a browser sends from any page, without asking the server first.
    headers = {"Origin": "http://elsewhere.example", "Content-Type": "text/plain"}
    with serving() as server:
        request = urllib.request.Request(f"{server.url}/v1/completions", body, headers)
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(request)
    assert caught.value.code == 401
    assert (
        "must have the server's API key, got a web page's, no --api-key; send it"
        in caught.value.read().decode()
    )
    caught.value.close()
    with serving(api_keys=["one"]) as server:
        headers["Authorization"] = "Bearer one"
        request = urllib.request.Request(f"{server.url}/v1/completions", body, headers)
        with urllib.request.urlopen(request) as answer:
            assert answer.status == 200


def test_a_port_that_is_taken_is_refused():
    with serving() as server, pytest.raises(ValueError, match="needs a host and a free port"):
        Server(server.service, port=int(server.url.rpartition(":")[2]))


def test_sessions_end_where_there_may_be_no_more():
    with serving(max_sessions=1) as server:
        asked = {"prompt": "a", "max_tokens": 1, "return_state": "one"}
        assert [call(server, "/v1/completions", asked)[0] for _ in range(2)] == [200, 200]
        status, _, content = call(server, "/v1/completions", {**asked, "return_state": True})
        assert status == 409
        assert "sessions must be at most 1, got 1 more" in json.loads(content)["error"]["message"]


def test_several_answers_are_refused_where_there_is_room_for_fewer_sessions():
    with serving(max_sessions=2) as server:
        asked = {"prompt": "a", "max_tokens": 1, "return_state": True}
        status, _, content = call(server, "/v1/completions", {**asked, "n": 3})
        assert status == 409
        assert "sessions must be at most 2, got 3 more" in json.loads(content)["error"]["message"]
        assert call(server, "/v1/completions", {**asked, "n": 2})[0] == 200


def test_answers_in_the_making_together_stay_within_the_sessions_that_there_may_be():
    """Also ones whose names are chosen; and one that nobody waits for leaves its place again."""
    with serving(max_sessions=1, max_tokens=1_000_000) as server:
        create = client_of(server).completions.create
        # Greedily, no answer to this prompt ends by itself.
        asked = {"model": "small", "prompt": "a", "max_tokens": 1_000_000, "temperature": 0}
        first = create(**asked, stream=True, extra_body={"return_state": "one"})
        next(iter(first))
        for name, status in (("two", 409), (True, 409), ("one", 200)):
            body = {"prompt": "a", "max_tokens": 1, "return_state": name}
            assert call(server, "/v1/completions", body)[0] == status
        assert call(server, "/v1/sessions/one", method="DELETE")[0] == 200
        first.close()
        for _ in range(200):
            status = call(server, "/v1/completions", {**body, "return_state": "two"})[0]
            if status == 200:
                break
            time.sleep(0.01)
        assert status == 200
        assert [*server.service.sessions.by_name] == ["two"]


def test_without_its_packages_the_command_tells_what_to_install(monkeypatch, capsys):
    for name in [name for name in sys.modules if name.startswith("staircase_attention.serve")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert command("serve", "pretrained:novels-and-talk") == 2
    assert "pip install 'staircase-attention[serve]'" in capsys.readouterr().err


def test_a_shipped_model_is_served_by_its_name(monkeypatch):
    class Noted:
        url = ""
        run = staticmethod(lambda: None)

        def __init__(self, service, **_):
            names.append(service.name)

    names = []
    monkeypatch.setattr("staircase_attention.serve.Server", Noted)
    assert command("serve", "pretrained:novels-and-talk") == 0
    assert names == ["novels-and-talk"]
