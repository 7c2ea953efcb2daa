"""`staircase sample` and `staircase chat`: text from a trained language model, as it is made."""

import io
import sys
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from staircase_attention.checks import check_integer, input_error
from staircase_attention.cli.arguments import CheckpointName, TrainedRun, TrustCode
from staircase_attention.files import check_can_write

if TYPE_CHECKING:
    from staircase_attention.generation import SamplingConfig
    from staircase_attention.training import LanguageModel

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

# Options that are fields of `SamplingConfig`.
SAMPLING = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed")
# Options that a saved stream has fixed.
FIXED = ("prompt", *SAMPLING, "stop")


def sample(
    context: typer.Context,
    run: TrainedRun,
    *,
    prompt: Annotated[
        list[str] | None,
        typer.Option(metavar="TEXT", help="Text to continue; may be repeated for a batch."),
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
    checkpoint: CheckpointName = "best",
    save: Annotated[
        Path | None, typer.Option(help="Save the stream to this file, to resume it later.")
    ] = None,
    resume: Annotated[
        Path | None, typer.Option(help="Resume a saved stream, for --max-tokens more.")
    ] = None,
    trust_code: TrustCode = False,
) -> None:
    """Generate text with a trained language model."""
    if resume is not None:
        check_fixed(context)
    check_integer("--max-tokens", max_tokens, minimum=1, example=200)
    check_text("--prompt", prompt or ())
    check_text("--stop", stop or ())
    if save is not None:
        check_can_write(save, "--save")
    from staircase_attention.generation import load_text_stream, save_stream, stream_text

    language = load(run, checkpoint, trust_code=trust_code)
    prompts = prompt or [""]
    if resume is not None:
        stream = load_text_stream(resume, language.model, decode=language.decode)
    else:
        stream = stream_text(
            language.model,
            [text or "\n" for text in prompts],
            encode=language.encode,
            decode=language.decode,
            # `take` counts the tokens, so that a saved stream can be resumed.
            max_tokens=None,
            sampling=sampling_config(context.params),
            stop_strings=stop or (),
            stop_tokens=end_tokens(language),
        )
    texts = dict.fromkeys(stream.tokens.status.rows, "")
    is_single = len(texts) == 1

    def show(parts: Iterable[tuple[int, str]]) -> None:
        """Print one text as it is made; several have to wait until they are complete."""
        for row, text in parts:
            texts[row] += text
            if is_single:
                typer.echo(text, nl=False)
                sys.stdout.flush()

    if echo and resume is None:
        show(enumerate(prompts))
    show((new.row, new.text) for new in stream.take(max_tokens))
    if save is None:
        show((new.row, new.text) for new in stream.end())
    else:
        # What the stream holds back comes when it is resumed.
        save_stream(stream, save)
    typer.echo("" if is_single else "\n".join(f"--- {row}\n{texts[row]}" for row in texts))


def chat(
    context: typer.Context,
    run: TrainedRun,
    *,
    separator: Annotated[
        str, typer.Option(help="Text that ends a turn in the corpus; \\n is a line break.")
    ] = "\\n\\n\\n",
    max_tokens: MaxTokens = 200,
    temperature: Temperature = 0.8,
    top_k: TopK = None,
    top_p: TopP = 0.95,
    min_p: MinP = None,
    repetition_penalty: Penalty = 1.0,
    seed: Seed = 0,
    checkpoint: CheckpointName = "best",
    trust_code: TrustCode = False,
) -> None:
    """Talk with a dialogue model; an empty line ends the dialogue."""
    ending = unescaped(separator)
    from staircase_attention.generation import Conversation

    language = load(run, checkpoint, trust_code=trust_code)
    dialogue = Conversation(
        language.model,
        encode=language.encode,
        decode=language.decode,
        separator=ending,
        stop_tokens=end_tokens(language),
        sampling=sampling_config(context.params),
        max_tokens=max_tokens,
    )
    if isinstance(sys.stdin, io.TextIOWrapper):
        # Lines that are not UTF-8 are refused one by one, and the dialogue continues.
        sys.stdin.reconfigure(errors="surrogateescape")
    while True:
        typer.echo("you: ", nl=False)
        words = sys.stdin.readline().strip()
        if not words:
            return
        try:
            check_text("a turn", [words])
        except ValueError as error:
            typer.echo(f"staircase: {error}", err=True)
            continue
        typer.echo("it:  ", nl=False)
        for part in dialogue.reply(words):
            typer.echo(part, nl=False)
            sys.stdout.flush()
        typer.echo()


def sampling_config(options: Mapping[str, Any]) -> "SamplingConfig":
    """The sampling options of a command line."""
    from staircase_attention.generation import SamplingConfig

    return SamplingConfig(**{name: options[name] for name in SAMPLING})


def load(run: Path, checkpoint: str, *, trust_code: bool) -> "LanguageModel":
    """A trained language model, on the fastest device."""
    from staircase_attention.training import load_language_model
    from staircase_attention.training.processes import choose_device

    language = load_language_model(run, checkpoint=checkpoint, trust_code=trust_code)
    language.model.to(choose_device())
    return language


def end_tokens(language: "LanguageModel") -> list[int]:
    """The token that ends a text, if the tokeniser has one."""
    end = language.tokeniser.end_symbol
    return [] if end is None else [end]


def check_fixed(context: typer.Context) -> None:
    """Refuse options that a saved stream has fixed, even with their default values."""
    sources = {name: context.get_parameter_source(name) for name in FIXED}
    given = [name for name, source in sources.items() if source and source.name == "COMMANDLINE"]
    if given:
        options = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise input_error(
            "a resumed stream keeps its settings",
            f"{options} with --resume",
            "leave them out, or start a new stream without --resume",
        )


def check_text(what: str, texts: Iterable[str]) -> None:
    """Refuse bytes that are not UTF-8, which Python represents as surrogates."""
    for text in texts:
        try:
            text.encode()
        except UnicodeEncodeError:
            raise input_error(
                f"{what} must be text in UTF-8", repr(text), "use that encoding"
            ) from None


def unescaped(separator: str) -> str:
    r"""A separator with Python's escapes replaced.

    >>> unescaped(r"\n\u00e9|") == "\né|"
    True
    """
    try:
        # The decoder reads Latin-1, so other characters become escapes first. Of escapes that
        # Python does not know it only warns.
        with warnings.catch_warnings(action="error"):
            ending = separator.encode("latin-1", "backslashreplace").decode("unicode_escape")
    except (UnicodeDecodeError, DeprecationWarning):
        ending = ""
    if not ending:
        raise input_error(
            "--separator must be text with only escapes that Python knows, as \\n, \\t or \\x1e",
            repr(separator),
            "use the text that ends a turn in the corpus; write \\\\ for a backslash",
        )
    check_text("--separator", [ending])
    return ending
