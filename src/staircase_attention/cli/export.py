"""`staircase export`: a run as a folder that Hugging Face Transformers reads."""

from pathlib import Path
from typing import Annotated

import typer

from staircase_attention.cli.arguments import TrainedRun
from staircase_attention.files import check_can_hold
from staircase_attention.models import SequenceModel
from staircase_attention.training import load_language_model, run_path
from staircase_attention.training.run_folder import RunFolder


def export(
    run: TrainedRun,
    folder: Annotated[Path, typer.Argument(help="the folder to be")],
    *,
    checkpoint: Annotated[str, typer.Option(help="`best`, `latest`, or an update.")] = "best",
) -> None:
    """Write a trained language model, tokeniser included, for Hugging Face Transformers."""
    check_can_hold(folder, "the folder of an export")
    # Transformers is an extra, and slow to import.
    from staircase_attention.huggingface import export as export_model

    language = load_language_model(run, checkpoint=checkpoint)
    if not isinstance(language.model, SequenceModel):
        raise ValueError(
            f"Transformers gets models of the family, got {language.recipe.model.kind}; "
            "export a run of one of them"
        )
    file = RunFolder(run_path(run)).tokeniser / "tokenizer.json"
    written = export_model(
        language.model,
        folder,
        tokenizer=file if file.is_file() else None,
        eos_token_id=language.tokeniser.end_symbol,
    )
    typer.echo(f"wrote {written}")
