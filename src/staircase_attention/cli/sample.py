"""`staircase sample` and `staircase chat`: text out of a trained model, as it is made."""

import io
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated

import typer

from staircase_attention.cli.arguments import TrainedRun
from staircase_attention.files import check_can_write
from staircase_attention.generation import (
    Conversation,
    NewText,
    SamplingConfig,
    TextStream,
    load_text_stream,
    save_stream,
    stream_text,
)
from staircase_attention.training import LanguageModel, load_language_model
from staircase_attention.training.build import choose_device

Temperature = Annotated[float, typer.Option(help="Under 1 safer, over 1 bolder, 0 the likeliest.")]
TopK = Annotated[int | None, typer.Option(help="Draw from so many of the likeliest.")]
TopP = Annotated[float | None, typer.Option(help="Draw from the likeliest of this share.")]
MinP = Annotated[float | None, typer.Option(help="Leave out what is less likely by this.")]
Penalty = Annotated[float, typer.Option(help="Over 1 avoids recent tokens.")]
Seed = Annotated[int, typer.Option(help="Another seed, another text.")]
CheckpointName = Annotated[str, typer.Option(help="`best`, `latest`, or an update.")]
MaxTokens = Annotated[int, typer.Option(help="Tokens to make, at most.")]

SETTLED = (
    "prompt",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repetition_penalty",
    "stop",
    "seed",
)
"""What a stream that was kept has settled when it began."""
ESCAPE = re.compile(
    r"""\\(?:[abfnrtv'"\\]|[0-7]{1,3}|x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}"""
    r"""|N\{[A-Za-z0-9 -]+\}|(?P<unknown>.?))""",
    re.DOTALL,
)
"""A backslash and what it makes a letter of, as in Python."""


def sample(
    context: typer.Context,
    run: TrainedRun,
    *,
    prompt: Annotated[
        list[str] | None, typer.Option(help="Where to begin; may be given repeatedly.")
    ] = None,
    max_tokens: MaxTokens = 200,
    temperature: Temperature = 1.0,
    top_k: TopK = None,
    top_p: TopP = None,
    min_p: MinP = None,
    repetition_penalty: Penalty = 1.0,
    stop: Annotated[
        list[str] | None, typer.Option(help="Text that ends it; may be given repeatedly.")
    ] = None,
    seed: Seed = 0,
    checkpoint: CheckpointName = "best",
    save: Annotated[
        Path | None, typer.Option(help="Keep the stream here, to go on with it later.")
    ] = None,
    resume: Annotated[
        Path | None, typer.Option(help="Go on with a stream that was kept, for --max-tokens more.")
    ] = None,
) -> None:
    """Let a trained language model write, token by token."""
    if resume is not None:
        check_settled(context)
    check_text("--prompt", prompt or ())
    check_text("--stop", stop or ())
    if save is not None:
        check_can_write(save, "--save")
    language = speaking(run, checkpoint)
    if resume is not None:
        made = load_text_stream(resume, language.model, decode=language.decode)
    else:
        made = stream_text(
            language.model,
            [text or "\n" for text in prompt or [""]],
            encode=language.encode,
            decode=language.decode,
            # `show` counts the tokens: a stream that is kept has no end of its own.
            max_tokens=None,
            sampling=SamplingConfig(
                temperature=temperature,
                top_k=top_k,
                top_p=top_p,
                min_p=min_p,
                repetition_penalty=repetition_penalty,
                seed=seed,
            ),
            stop_strings=stop or (),
            stop_tokens=end_of(language),
        )
    show(made, max_tokens, is_kept=save is not None)
    if save is not None:
        save_stream(made, save)


def show(made: TextStream, max_tokens: int, *, is_kept: bool = False) -> None:
    """Print one text as it comes, or several one after another when they are done.

    What a stream that is kept holds back is left to those who go on with it.
    """
    rows = made.tokens.progress.rows
    texts = dict.fromkeys(rows, "")
    for part in parts(made, max_tokens, is_kept=is_kept):
        texts[part.row] += part.text
        if len(rows) == 1:
            typer.echo(part.text, nl=False)
            sys.stdout.flush()
    if len(rows) == 1:
        typer.echo()
        return
    for row, text in texts.items():
        typer.echo(f"--- {row}\n{text}")


def parts(made: TextStream, max_tokens: int, *, is_kept: bool) -> Iterator[NewText]:
    """The text of so many more tokens, and what is then held back unless the stream is kept."""
    yield from made.take(max_tokens)
    if not is_kept:
        yield from made.end()


def chat(
    run: TrainedRun,
    *,
    separator: Annotated[
        str, typer.Option(help="What ends a turn in the corpus; \\n is a new line.")
    ] = "\\n\\n\\n",
    max_tokens: MaxTokens = 200,
    temperature: Temperature = 0.8,
    top_k: TopK = None,
    top_p: TopP = 0.95,
    min_p: MinP = None,
    repetition_penalty: Penalty = 1.0,
    seed: Seed = 0,
    checkpoint: CheckpointName = "best",
) -> None:
    """Talk with a dialogue model; an empty line ends the talk."""
    ending = unescaped(separator)
    language = speaking(run, checkpoint)
    talk = Conversation(
        language.model,
        encode=language.encode,
        decode=language.decode,
        separator=ending,
        stop_tokens=end_of(language),
        sampling=SamplingConfig(
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            repetition_penalty=repetition_penalty,
            seed=seed,
        ),
        max_tokens=max_tokens,
    )
    if isinstance(sys.stdin, io.TextIOWrapper):
        # What is no text is refused line by line, and the talk goes on.
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
        for part in talk.reply(words):
            typer.echo(part, nl=False)
            sys.stdout.flush()
        typer.echo()


def check_settled(context: typer.Context) -> None:
    """Refuse options that a stream cannot take up when it goes on."""
    given = [name for name in SETTLED if is_given(context, name)]
    if given:
        options = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise ValueError(
            f"a stream goes on with the settings it began with, got {options} with --resume; "
            "leave out what is settled, or begin a new stream without --resume"
        )


def is_given(context: typer.Context, name: str) -> bool:
    """Whether an option was on the command line, be it with its default."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def check_text(what: str, texts: Iterable[str]) -> None:
    """Refuse bytes that are no text; Python gives them as surrogates."""
    for text in texts:
        try:
            text.encode()
        except UnicodeEncodeError:
            raise ValueError(
                f"{what} must be text in UTF-8, got {text!r}; write it in that encoding"
            ) from None


def unescaped(separator: str) -> str:
    r"""What is meant by a separator on a command line.

    >>> unescaped(r"\n\u00e9|") == "\né|"
    True
    """

    def meant(escape: re.Match[str]) -> str:
        if escape["unknown"] is None:
            try:
                return escape[0].encode().decode("unicode_escape")
            except UnicodeDecodeError:
                pass
        raise ValueError(
            "--separator must have only escapes that Python knows, as \\n, \\t or \\x1e, "
            f"got {escape[0]} in {separator}; write \\\\ for a backslash"
        )

    check_text("--separator", [separator])
    ending = ESCAPE.sub(meant, separator)
    check_text("--separator", [ending])
    if not ending:
        raise ValueError(
            "--separator must have at least one letter, got none; use what ends a turn in the "
            "corpus, as \\n"
        )
    return ending


def speaking(run: Path, checkpoint: str) -> LanguageModel:
    """A trained model of text, where it runs fastest."""
    language = load_language_model(run, checkpoint=checkpoint)
    language.model.to(choose_device())
    return language


def end_of(language: LanguageModel) -> list[int]:
    """The token that ends a text, if the tokeniser has one."""
    end = language.tokeniser.end_symbol
    return [] if end is None else [end]
