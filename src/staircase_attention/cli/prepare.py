"""`staircase prepare`: raw text into corpora."""

from pathlib import Path
from typing import Annotated

import typer

from staircase_attention.data import (
    Corpus,
    HeldOut,
    Lines,
    Part,
    Progress,
    ReadingOptions,
    Silent,
    named_tokeniser,
    prepare_enwik8,
    prepare_text,
)
from staircase_attention.data import prepare as prepare_corpus
from staircase_attention.data.reddit import RedditOptions, RedditSource
from staircase_attention.files import check_can_hold

prepare = typer.Typer(
    name="prepare",
    help="Turn raw text into a corpus of token shards.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
Output = Annotated[Path, typer.Option(help="The corpus to be.")]
TokeniserName = Annotated[
    str,
    typer.Option(
        "--tokeniser",
        help="bytes, bpe-N to learn N symbols, or a tokenizer.json or folder of GPT-2 files.",
    ),
]
Valid = Annotated[float, typer.Option(help="Fraction held out for validation.")]
Test = Annotated[float, typer.Option(help="Fraction held out for the final number.")]
Quiet = Annotated[bool, typer.Option(help="Show no progress.")]


@prepare.command()
def enwik8(
    file: Annotated[Path, typer.Argument(help="enwik8, as it is or compressed")],
    *,
    output: Output = Path("corpora/enwik8"),
    quiet: Quiet = False,
) -> None:
    """The first 10^8 bytes of Wikipedia: bytes, 90 / 5 / 5 million."""
    check_can_hold(output, "--output")
    show(prepare_enwik8(file, output, progress=watch(quiet)))


@prepare.command()
def text(
    paths: Annotated[list[Path], typer.Argument(help=".txt, .jsonl, .parquet, .tar, folders")],
    *,
    weights: Annotated[
        str | None, typer.Option(help="One for each path, separated by commas, as 1,0.5,2.")
    ] = None,
    tokeniser: TokeniserName = "bpe-8008",
    text_field: Annotated[str, typer.Option(help="Field of a JSON line with the text.")] = "text",
    output: Output = Path("corpora/base"),
    valid: Valid = 0.005,
    test: Test = 0.005,
    quiet: Quiet = False,
) -> None:
    """Any mix of text files and folders, compressed or not, with a weight each."""
    check_can_hold(output, "--output")
    corpus = prepare_text(
        paths,
        output,
        weights=None if weights is None else parse_weights(weights),
        tokeniser=named_tokeniser(tokeniser),
        held_out=HeldOut(valid=valid, test=test),
        options=ReadingOptions(text_field=text_field),
        progress=watch(quiet),
    )
    show(corpus)


@prepare.command()
def reddit(
    dumps: Annotated[list[Path], typer.Argument(help="Pushshift comments, plain or compressed")],
    *,
    form: Annotated[
        str, typer.Option(help="paths, leaves or threads, as RedditOptions has them.")
    ] = "paths",
    tokeniser: TokeniserName = "bpe-8008",
    output: Output = Path("corpora/reddit"),
    valid: Valid = 0.005,
    test: Test = 0.005,
    quiet: Quiet = False,
) -> None:
    """Comments with the path of comments that leads to each; docs/reddit.md has the rules."""
    check_can_hold(output, "--output")
    options = RedditOptions(form=form, held_out=HeldOut(valid=valid, test=test))  # type: ignore[arg-type]
    work = output.with_name(f"{output.name}.threads")
    source = RedditSource(dumps, work, options)
    output.parent.mkdir(parents=True, exist_ok=True)
    corpus = prepare_corpus(
        [Part(source=source)],
        output,
        kind="reddit",
        tokeniser=named_tokeniser(tokeniser),
        held_out=HeldOut(valid=valid, test=test),
        progress=watch(quiet),
    )
    show(corpus)


def watch(quiet: bool) -> Progress:
    """Lines of progress, or none."""
    return Silent() if quiet else Lines()


def parse_weights(words: str) -> list[float]:
    """Numbers that are separated by commas."""
    try:
        return [float(word) for word in words.split(",")]
    except ValueError:
        raise ValueError(
            f"--weights must be numbers separated by commas, got {words!r}; write them as 1,0.5,2"
        ) from None


def show(corpus: Corpus) -> None:
    """Print what is in a corpus."""
    tokeniser = corpus.manifest.tokeniser
    typer.echo(f"{corpus.folder}: {tokeniser.name}, {tokeniser.vocab_size:,} symbols")
    for name, split in corpus.manifest.splits.items():
        typer.echo(
            f"{name}: {split.num_tokens:,} tokens, {split.num_bytes:,} bytes, "
            f"{split.num_documents:,} documents"
        )
    for source in corpus.manifest.preparation.sources:
        for what, count in source.skipped.items():
            typer.echo(f"{source.name}: {count:,} {what}")
