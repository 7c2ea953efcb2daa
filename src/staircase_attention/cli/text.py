"""`staircase sample`, `chat` and `serve`: text from a trained language model, as it is made."""

import io
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated

import typer

from staircase_attention import training
from staircase_attention.checks import InputError, check_integer, input_error
from staircase_attention.cli import arguments
from staircase_attention.files import as_written, check_can_hold, check_can_write

Temperature = Annotated[
    float, typer.Option(help="Divides the logits; 0 takes the likeliest token.")
]
TopK = Annotated[int | None, typer.Option(metavar="K", help="Keep the K likeliest tokens.")]
TopP = Annotated[
    float | None,
    typer.Option(
        metavar="P",
        help="Nucleus sampling: keep the smallest set of tokens with total probability P.",
    ),
]
MinP = Annotated[
    float | None,
    typer.Option(metavar="P", help="Drop tokens below P times the probability of the likeliest."),
]
Penalty = Annotated[float, typer.Option(help="Above 1 makes recent tokens less likely.")]
Seed = Annotated[int, typer.Option(help="Random seed.")]
MaxTokens = Annotated[int, typer.Option(metavar="N", help="Maximum number of new tokens.")]

Separator = Annotated[
    str, typer.Option(help="Text that ends a turn in the corpus; \\n is a line break.")
]
SEPARATOR = "\\n\\n\\n"

# Options that are fields of `SamplingConfig`.
SAMPLING = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed")
# Options that a saved stream has fixed.
FIXED = ("prompt", *SAMPLING, "stop")


def sample(
    context: typer.Context,
    run: arguments.TrainedRun,
    *,
    prompt: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TEXT", help="Text to continue, - for standard input; may be repeated."
        ),
    ] = None,
    echo: Annotated[bool, typer.Option(help="Print the prompt before its continuation.")] = True,
    max_tokens: MaxTokens = 200,
    temperature: Temperature = 1.0,
    top_k: TopK = None,
    top_p: TopP = None,
    min_p: MinP = None,
    repetition_penalty: Penalty = 1.0,
    stop: Annotated[
        list[str] | None, typer.Option(metavar="TEXT", help="Stop at this text; may be repeated.")
    ] = None,
    seed: Seed = 0,
    passes: arguments.NumPasses = None,
    exit_rule: arguments.ExitRule = None,
    draft_passes: Annotated[
        int | None,
        typer.Option(metavar="N", help="Speculative decoding: draft tokens in N passes."),
    ] = None,
    draft_tokens: Annotated[
        int | None,
        typer.Option(metavar="N", help="Tokens to draft before they are verified; by default 4."),
    ] = None,
    checkpoint: arguments.CheckpointName = "best",
    save: Annotated[
        Path | None, typer.Option(help="Save the stream to this file, to resume it later.")
    ] = None,
    resume: Annotated[
        Path | None, typer.Option(help="Resume a saved stream, for --max-tokens more.")
    ] = None,
    device: arguments.DeviceName = None,
    trust_code: arguments.TrustCode = False,
) -> None:
    """Generate text with a trained language model."""
    if resume is not None:
        check_fixed(context)
    check_integer("--max-tokens", max_tokens, minimum=1, example=200)
    if draft_tokens is not None and draft_passes is None:
        raise input_error("--draft-tokens is for --draft-passes", draft_tokens, "leave it out")
    if save is not None:
        check_can_write(save, "--save")
    from staircase_attention.experiments.page import continued
    from staircase_attention.generation import SamplingConfig, load_stream, save_stream

    language = load(run, checkpoint, device=device, trust_code=trust_code)
    if passes is not None or exit_rule is not None:
        model = arguments.with_exit(arguments.with_passes(language.model, passes), exit_rule)
        language = replace(language, model=model)
    typed = prompt or [""]
    prompts = [one if one != "-" else sys.stdin.read().removesuffix("\n") for one in typed]
    if resume is not None:
        stream = load_stream(resume, language.model, decode=language.decode)
        if not stream.waiting and set(stream.rows) <= set(stream.finished):
            typer.echo(f"every text of {resume} has ended", err=True)
    else:
        sampling = SamplingConfig(**{name: context.params[name] for name in SAMPLING})
        # `take` counts the tokens, so that a saved stream can be resumed.
        options = {"max_tokens": None, "sampling": sampling, "stop_strings": stop or ()}
        stream = continued(language, prompts, **options)
    if draft_passes is not None:
        stream.speculate(draft_passes, 4 if draft_tokens is None else draft_tokens)
    if save is None:
        # The last token shows what was held back; in a saved stream it comes later.
        stream.max_tokens = stream.num_made + max_tokens
    texts = {row: prompts[row] if echo and resume is None else "" for row in stream.rows}
    is_single = len(texts) == 1
    if is_single:
        typer.echo("".join(texts.values()), nl=False)
    with training.stop_requests() as request:
        for new in stream.take(max_tokens):
            texts[new.row] += new.text
            # One text appears as it is made; several have to wait until they are complete.
            if is_single:
                typer.echo(new.text, nl=False)
                sys.stdout.flush()
            if request.number:
                break
        if save is not None:
            save_stream(stream, save)
    typer.echo("" if is_single else "\n".join(f"--- {row}\n{texts[row]}" for row in texts))
    if request.number:
        if save is not None:
            typer.echo(f"saved; continue with --resume {save}", err=True)
        raise typer.Exit(128 + request.number)


def chat(
    context: typer.Context,
    run: arguments.TrainedRun,
    *,
    separator: Separator = SEPARATOR,
    max_tokens: MaxTokens = 200,
    temperature: Temperature = 0.8,
    top_k: TopK = None,
    top_p: TopP = 0.95,
    min_p: MinP = None,
    repetition_penalty: Penalty = 1.0,
    seed: Seed = 0,
    checkpoint: arguments.CheckpointName = "best",
    save: Annotated[
        Path | None, typer.Option(help="Text file for the dialogue; one that exists is continued.")
    ] = None,
    device: arguments.DeviceName = None,
    trust_code: arguments.TrustCode = False,
) -> None:
    """Talk with a dialogue model; an empty line ends the dialogue."""
    ending = separator.replace("\\n", "\n")
    check_integer("--max-tokens", max_tokens, minimum=1, example=200)
    past = [] if save is None else saved_turns(save, ending)
    from staircase_attention.generation import Conversation, SamplingConfig

    language = load(run, checkpoint, device=device, trust_code=trust_code)
    end = language.tokeniser.end_symbol
    dialogue = Conversation(
        language.model,
        encode=language.encode,
        decode=language.decode,
        separator=ending,
        start_token=end,
        stop_tokens=[] if end is None else [end],
        sampling=SamplingConfig(**{name: context.params[name] for name in SAMPLING}),
        max_tokens=max_tokens,
    )
    typer.echo("An empty line or Ctrl-D ends the dialogue, Ctrl-C cuts a reply short.", err=True)
    for number, turn in enumerate(past):
        dialogue.read(turn)
        typer.echo(f"{'it:  ' if number % 2 else 'you: '}{turn.strip()}")
    dialogue.num_turns = len(past) // 2
    for words in turns():
        reply = ""
        try:
            # What is refused is not shown.
            language.encode(words)
            if ending in words:
                rule = "a turn must not contain the separator"
                raise input_error(rule, repr(words), "leave it out, or choose another --separator")
            if not sys.stdin.isatty():
                typer.echo(f"you: {words}")
            with training.stop_requests() as request:
                for part in dialogue.reply(words):
                    typer.echo(part if reply else f"it:  {part}", nl=False)
                    sys.stdout.flush()
                    reply += part
                    if request.number:
                        break
        except InputError as error:
            typer.echo(f"staircase: {error}", err=True)
            continue
        typer.echo("" if reply else "it:")
        if save is not None:
            with save.open("ab") as file:
                file.write(f"{words}{ending}{reply}{ending}".encode())
        if request.number not in (0, signal.SIGINT):
            raise typer.Exit(128 + request.number)


def serve(
    context: typer.Context,
    run: arguments.TrainedRun,
    *,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 for all.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.")] = 8000,
    api_key: Annotated[
        list[str] | None,
        typer.Option(envvar="STAIRCASE_API_KEY", help="Key that requests need; may be repeated."),
    ] = None,
    sessions: Annotated[
        Path | None, typer.Option(help="Folder to load sessions from, and to save them to.")
    ] = None,
    max_streams: Annotated[int, typer.Option(metavar="N", help="Answers at a time.")] = 64,
    max_tokens: Annotated[int, typer.Option(metavar="N", help="New tokens per answer.")] = 4096,
    max_prompt: Annotated[int, typer.Option(metavar="N", help="Prompt tokens, times n.")] = 100_000,
    max_body: Annotated[int, typer.Option(metavar="BYTES", help="Bytes per request.")] = 1 << 20,
    max_sessions: Annotated[int, typer.Option(metavar="N", help="Sessions in memory.")] = 1000,
    rate: Annotated[
        int | None, typer.Option(metavar="N", help="Requests per minute of a key or address.")
    ] = None,
    grace: Annotated[
        float, typer.Option(metavar="SECONDS", help="Time for answers to end after Ctrl-C.")
    ] = 10.0,
    separator: Separator = SEPARATOR,
    checkpoint: arguments.CheckpointName = "best",
    device: arguments.DeviceName = None,
    trust_code: arguments.TrustCode = False,
) -> None:
    """Serve a language model with OpenAI's protocol, until Ctrl-C."""
    from staircase_attention.serve import Limits, Server, Service
    from staircase_attention.training.loading import PRETRAINED

    if sessions is not None:
        check_can_hold(sessions, "--sessions")
    service = Service(
        load(run, checkpoint, device=device, trust_code=trust_code),
        name=str(run).removeprefix(PRETRAINED),
        limits=Limits(**{one.name: context.params[one.name] for one in fields(Limits)}),
        # An empty variable counts as none, but whoever set it means to refuse others.
        api_keys=api_key or [""] * ("STAIRCASE_API_KEY" in os.environ),
        separator=separator.replace("\\n", "\n"),
        folder=sessions,
    )
    server = Server(service, host=host, port=port, grace=grace)
    typer.echo(f"serving {run} at {server.url}/v1", err=True)
    server.run()


def saved_turns(path: Path, ending: str) -> list[str]:
    """The turns of a dialogue that was saved in a file; none where there is no such file yet."""
    check_can_write(path, "--save")
    with as_written("a saved dialogue", path, "name another file, or its own --separator"):
        # As bytes: line ends of every kind stay what they are.
        text = path.read_bytes().decode() if path.exists() else ""
        # What a reply was cut off in may begin a separator: the last one that fits is the end.
        *turns, rest = text.rsplit(ending)
        if rest:
            raise ValueError("it does not end with the separator")
    return turns


def turns() -> Iterator[str]:
    """The user's lines, until an empty one or the end of the input."""
    # Importing it gives `input` line editing and history, where there is a terminal.
    with suppress(ImportError):
        import readline  # noqa: F401
    if isinstance(sys.stdin, io.TextIOWrapper):
        # Lines that are not UTF-8 are refused one by one, and the dialogue continues.
        sys.stdin.reconfigure(errors="surrogateescape")
    # Lines that nobody types are printed as they are read.
    prompt = "you: " if sys.stdin.isatty() else ""
    try:
        while words := input(prompt).strip():
            yield words
    except (EOFError, KeyboardInterrupt) as end:
        typer.echo("\n" if prompt else "", nl=False)
        if isinstance(end, KeyboardInterrupt):
            raise


def load(
    run: Path, checkpoint: str, *, device: str | None, trust_code: bool
) -> "training.LanguageModel":
    """A trained language model, by default on the fastest device."""
    where = training.choose_device(device)
    language = training.load_language_model(run, checkpoint=checkpoint, trust_code=trust_code)
    language.model.to(where)
    return language


def check_fixed(context: typer.Context) -> None:
    """Refuse options that a saved stream has fixed, even with their default values."""
    sources = {name: context.get_parameter_source(name) for name in FIXED}
    given = [name for name, source in sources.items() if source and source.name == "COMMANDLINE"]
    if given:
        options = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        remedy = "leave them out, or start a new stream without --resume"
        raise input_error("a resumed stream keeps its settings", f"{options} with --resume", remedy)
