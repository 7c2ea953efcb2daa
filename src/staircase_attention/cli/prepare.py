"""`staircase prepare`: raw text into corpora."""

import shutil
from pathlib import Path
from typing import Annotated, Any

import typer

from staircase_attention import data
from staircase_attention.checks import InputError, input_error
from staircase_attention.cli.arguments import Quiet, parse_values
from staircase_attention.display import choose_display, counted
from staircase_attention.files import check_can_hold

prepare = typer.Typer(
    name="prepare",
    help="Turn raw text into a corpus of token shards.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
Output = Annotated[Path, typer.Option(help="Folder of the corpus.")]
TokeniserName = Annotated[
    str,
    typer.Option(
        "--tokeniser",
        help="bytes, bpe-N to train one of N tokens, a tokenizer.json, or a folder of GPT-2 files.",
    ),
]
Valid = Annotated[float, typer.Option(help="Fraction of the documents for validation.")]
Test = Annotated[float, typer.Option(help="Fraction of the documents for the final test.")]
AllowDamaged = Annotated[
    bool, typer.Option("--allow-damaged", help="Use what comes before the damage of a file.")
]
PartOf = Annotated[
    str | None,
    typer.Option("--part", metavar="I/N", help="Prepare part I of N only; `join` joins all N."),
]


@prepare.command()
def enwik8(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="enwik8, plain or compressed")],
    *,
    output: Output = Path("corpora/enwik8"),
    quiet: Quiet = False,
) -> None:
    """The first 10^8 bytes of Wikipedia: bytes, 90 / 5 / 5 million."""
    check_can_hold(output, "--output")
    progress = choose_display(quiet=quiet, has_bar=False)
    show(data.prepare_enwik8(file, output, progress=progress))


@prepare.command()
def text(
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="PATH", help="text, code, .jsonl, .parquet, .tar, or folder"),
    ],
    *,
    weights: Annotated[
        str | None, typer.Option(help="One weight per path, separated by commas, as 1,0.5,2.")
    ] = None,
    tokeniser: TokeniserName = "bpe-8008",
    text_field: Annotated[str, typer.Option(help="JSON field that holds the text.")] = "text",
    paragraphs: Annotated[
        bool, typer.Option("--paragraphs", help="Each paragraph of a .txt file is a document.")
    ] = False,
    output: Output = Path("corpora/base"),
    valid: Valid = 0.005,
    test: Test = 0.005,
    valid_file: Annotated[
        list[Path] | None, typer.Option(help="File or folder for validation, instead of --valid.")
    ] = None,
    test_file: Annotated[
        list[Path] | None, typer.Option(help="File or folder for the test, instead of --test.")
    ] = None,
    allow_damaged: AllowDamaged = False,
    part: PartOf = None,
    quiet: Quiet = False,
) -> None:
    """Text files and folders, plain or compressed, weighted."""
    check_can_hold(output, "--output")
    options = data.ReadingOptions(
        text_field=text_field,
        text_unit="paragraphs" if paragraphs else "files",
        allow_damaged=allow_damaged,
    )
    held_out = [
        data.TextSource(path, options=options, split=split)
        for split, files in (("valid", valid_file), ("test", test_file))
        for path in files or ()
    ]
    corpus = data.prepare_text(
        [*paths, *held_out],
        output,
        weights=None if weights is None else parse_values(weights) + [1.0] * len(held_out),
        tokeniser=data.named_tokeniser(tokeniser),
        held_out=data.HeldOut(valid=0 if valid_file else valid, test=0 if test_file else test),
        options=options,
        progress=choose_display(quiet=quiet, has_bar=False),
        part=parse_part(part),
    )
    show(corpus)


@prepare.command()
def reddit(
    dumps: Annotated[
        list[Path], typer.Argument(metavar="DUMP", help="Pushshift comments, plain or compressed")
    ],
    *,
    form: Annotated[
        str, typer.Option(help="paths, or leaves: only paths to comments without replies.")
    ] = "paths",
    removed: Annotated[
        str, typer.Option(help="Replies to removed comments: drop, cut or placeholder.")
    ] = "drop",
    missing: Annotated[
        str, typer.Option(help="Replies to missing comments: drop, cut or placeholder.")
    ] = "drop",
    depth: Annotated[int | None, typer.Option(help="Leave out paths of more comments.")] = None,
    filters: Annotated[
        str, typer.Option(help="Which texts to leave out: none, or roller (Roller et al., 2020).")
    ] = "none",
    tokeniser: TokeniserName = "bpe-8008",
    output: Output = Path("corpora/reddit"),
    valid: Valid = 0.005,
    test: Test = 0.005,
    allow_damaged: AllowDamaged = False,
    part: PartOf = None,
    quiet: Quiet = False,
) -> None:
    """Reddit comments with the comments that they reply to."""
    check_can_hold(output, "--output")
    from staircase_attention.data.reddit import RedditOptions, RedditSource

    held_out = data.HeldOut(valid=valid, test=test)
    # The options themselves check the words.
    words: Any = {"form": form, "removed": removed, "missing": missing, "filters": filters}
    options = RedditOptions(maximum_depth=depth, held_out=held_out, **words)
    # Threads are kept beside the corpus, so that a stopped preparation continues.
    work = output.with_name(f"{output.name}.threads")
    progress = choose_display(quiet=quiet, has_bar=False)
    source = RedditSource(dumps, work, options, allow_damaged=allow_damaged, progress=progress)
    # Other parts, perhaps on other machines, use the same folder.
    is_own = part is None and not work.exists()
    try:
        corpus = data.prepare(
            [data.Part(source=source)],
            output,
            kind="reddit",
            tokeniser=data.named_tokeniser(tokeniser),
            held_out=held_out,
            progress=progress,
            part=parse_part(part),
        )
    except InputError:
        if is_own:
            shutil.rmtree(work, ignore_errors=True)
        raise
    show(corpus)


@prepare.command()
def join(
    folders: Annotated[list[Path], typer.Argument(metavar="PART", help="folders of all parts")],
    *,
    output: Output,
) -> None:
    """Join all parts of a preparation into one corpus."""
    check_can_hold(output, "--output")
    show(data.join(folders, output))


def parse_part(words: str | None) -> tuple[int, int] | None:
    """A part and the number of parts: 3 and 16 of 3/16."""
    if words is None:
        return None
    number, _, count = words.partition("/")
    if not (number.isdecimal() and count.isdecimal()):
        raise input_error("--part must be two numbers", repr(words), "use for example 3/16")
    return int(number), int(count)


def show(corpus: "data.Corpus") -> None:
    """Print the size of a corpus and what was skipped."""
    tokeniser = corpus.manifest.tokeniser
    typer.echo(f"{corpus.folder}: {tokeniser.name}, {tokeniser.vocab_size:,} tokens")
    for name, split in corpus.manifest.splits.items():
        typer.echo(
            f"{name}: {counted(split.num_tokens, 'tokens')}, {counted(split.num_bytes, 'bytes')}, "
            f"{counted(split.num_documents, 'documents')}"
        )
    for line in corpus.manifest.preparation.skipped_lines():
        typer.echo(line)
