"""`staircase pack` and `staircase export`: trained models as folders to keep and to share."""

from typing import Annotated, get_args

import typer

from staircase_attention.checks import check_choice, input_error
from staircase_attention.cli.arguments import CheckpointName, NewFolder, TrainedRun, TrustCode
from staircase_attention.files import check_can_hold


def pack(
    run: TrainedRun,
    folder: NewFolder,
    *,
    checkpoint: CheckpointName = "best",
    numbers: Annotated[str, typer.Option(help="bfloat16 or float32.")] = "bfloat16",
) -> None:
    """Pack a run's recipe, result and weights into a small folder."""
    from staircase_attention.training import pack as pack_run
    from staircase_attention.training.loading import Numbers

    check_choice("--numbers", numbers, get_args(Numbers))
    written = pack_run(run, folder, checkpoint=checkpoint, numbers=numbers)  # type: ignore[arg-type]
    num_bytes = sum(path.stat().st_size for path in written.rglob("*") if path.is_file())
    typer.echo(f"wrote {written}, {num_bytes / 1e6:.2f} MB")


def export(
    run: TrainedRun,
    folder: NewFolder,
    *,
    checkpoint: CheckpointName = "best",
    trust_code: TrustCode = False,
) -> None:
    """Export a language model to Hugging Face Transformers."""
    check_can_hold(folder, "the folder of an export")
    from staircase_attention.huggingface import export as export_model
    from staircase_attention.models import SequenceModel
    from staircase_attention.training import load_language_model, run_path
    from staircase_attention.training.run_folder import RunFolder

    language = load_language_model(run, checkpoint=checkpoint, trust_code=trust_code)
    if not isinstance(language.model, SequenceModel):
        raise input_error(
            "only models of the family can be exported",
            language.recipe.model.kind,
            "export another run",
        )
    file = RunFolder(run_path(run)).tokeniser / "tokenizer.json"
    written = export_model(
        language.model,
        folder,
        tokenizer=file if file.is_file() else None,
        eos_token_id=language.tokeniser.end_symbol,
    )
    typer.echo(f"wrote {written}")
