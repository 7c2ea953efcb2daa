"""`staircase recipes`, `train`, `resume`, `pack`, `export`: from a recipe to weights to share."""

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from staircase_attention import experiments, training
from staircase_attention.checks import check_choice, import_extra, input_error, one_line
from staircase_attention.cli import arguments
from staircase_attention.display import Display, choose_display, counted
from staircase_attention.files import check_can_hold, save_folder

PROJECT = "staircase-attention"


def recipes(
    name: Annotated[
        str | None, typer.Argument(metavar="[RECIPE]", help="print all settings of this one")
    ] = None,
) -> None:
    """List all recipes, or print one with all its settings."""
    if name is not None:
        typer.echo(json.dumps(experiments.find_recipe(name).to_plain(), indent=2))
        return
    everything = experiments.recipes()
    width = max(map(len, everything))
    for recipe in everything.values():
        config, model = recipe.training, recipe.to_plain()["model"]
        options = model.get("schedule", {"name": model["kind"]} | model)
        shown = [f"{key}={value}" for key, value in options.items() if key not in ("name", "kind")]
        shown += [f"training.passes={config.passes.kind}"] if config.passes.numbers else []
        budget = f"{config.num_updates:>7,} x {config.num_lanes:>3} x {config.segment_length:>3}"
        typer.echo(f"{recipe.name:<{width}}  {budget}  {' '.join([options['name'], *shown])}")
    typer.echo("(updates x batch x segment; `staircase recipes RECIPE` prints all settings)")


def train(
    recipe: arguments.RecipeName,
    overrides: arguments.Overrides = None,
    *,
    init: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Start from the weights of this run.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="Run folder; by default a new one under runs/.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Resume the run in --output if there is one.")
    ] = False,
    logger: arguments.Logger = None,
    device: arguments.DeviceName = None,
    quiet: arguments.Quiet = False,
) -> int:
    """Train a model by a recipe, in a new run folder."""
    chosen = experiments.find_recipe(recipe).override(arguments.parse_assignments(overrides or []))
    if output is None and (resume or "WORLD_SIZE" in os.environ):
        what = "--resume needs a" if resume else "processes that train together need the same"
        raise input_error(f"{what} folder", "none", "name it with --output")
    folder = output or training.default_folder(chosen)
    try:
        shown = watched(logger, folder, chosen.to_plain(), quiet=quiet)
        result = training.train(
            chosen, folder, init=init, resume=resume, device=device, progress=shown
        )
    finally:
        # A run that is refused has written nothing, and its number is free again.
        if output is None:
            with suppress(OSError):
                os.removedirs(folder)
    return show(result, folder, device=device, with_page=not quiet)


def resume(
    run: arguments.RunArgument,
    *,
    updates: Annotated[
        int | None,
        typer.Option(metavar="N", help="Total number of updates; also continues a finished run."),
    ] = None,
    logger: arguments.Logger = None,
    device: arguments.DeviceName = None,
    trust_code: arguments.TrustCode = False,
    quiet: arguments.Quiet = False,
) -> int:
    """Resume a run that was stopped, or continue a finished one."""
    shown = watched(logger, run, {}, quiet=quiet)
    result = training.resume(
        run, num_updates=updates, device=device, trust_code=trust_code, progress=shown
    )
    return show(result, run, device=device, with_page=not quiet)


class Logged(Display):
    """Another display, and the same facts for Weights & Biases or MLflow."""

    def __init__(
        self, display: Display, logger: str, folder: Path, config: Mapping[str, Any]
    ) -> None:
        check_choice("--logger", logger, ("wandb", "mlflow"))
        self._package = import_extra(logger, needed_for="--logger", extra=logger)
        self._display, self._logger = display, logger
        self._folder, self._config = folder.resolve(), dict(config)
        self._failed = False
        self.say = display.say  # type: ignore[method-assign]

    def begin(self, name: str, done: int, total: int) -> None:
        """Open a run there; Weights & Biases continues that of the same folder."""
        self._display.begin(name, done, total)
        try:
            if self._logger == "wandb":
                number = hashlib.sha256(str(self._folder).encode()).hexdigest()[:16]
                options = {"id": number, "name": name, "resume": "allow", "config": self._config}
                self._package.init(project=PROJECT, dir=str(self._folder), **options)
            else:
                self._package.set_experiment(PROJECT)
                self._package.start_run(run_name=name, tags={"folder": str(self._folder)})
                self._package.log_dict(self._config, "recipe.json")
        except Exception as error:
            remedy = f"correct that, then: staircase resume {self._folder} --logger {self._logger}"
            rule = f"{self._logger} must be able to open a run"
            raise input_error(rule, one_line(error), remedy) from None

    def advance(self, done: int, **facts: float) -> None:
        """Pass on scores; the speed comes with them."""
        self._display.advance(done, **facts)
        if not self._failed and facts.keys() - {"tokens_per_second"}:
            log = self._package.log if self._logger == "wandb" else self._package.log_metrics
            self._attempt(log, facts, step=done)

    def end(self) -> None:
        """Close the run."""
        self._display.end()
        self._attempt(self._package.finish if self._logger == "wandb" else self._package.end_run)

    def _attempt(self, call: Callable[..., object], *values: object, **named: object) -> None:
        """A call of the logger; one that fails costs no training, and is reported once."""
        try:
            call(*values, **named)
        except Exception as error:
            if not self._failed:
                self.say(f"logging to {self._logger} stopped: {one_line(error)}")
            self._failed = True


def watched(logger: str | None, folder: Path, config: Mapping[str, Any], *, quiet: bool) -> Display:
    """What shows a run, and logs it where the first process is asked to."""
    display = choose_display(quiet=quiet)
    if logger is None or not training.is_first_process():
        return display
    return Logged(display, logger, folder, config)


def show(
    result: "training.RunResult", folder: Path, *, device: str | None = None, with_page: bool = True
) -> int:
    """Print the result of a run, and write its page; a run that diverged is a failure."""
    from staircase_attention.evaluation import measures, title

    status = 0 if result.status == "finished" else 1
    if not training.is_first_process():
        return status
    for split, score in result.scores.items():
        typer.echo(f"{title(split, score)}: {measures(score)}")
    best = f"best at update {result.best_update}"
    if result.best_update is None:
        best = "not scored, lower training.optimizer.learning_rate"
    typer.echo(
        f"{result.status} after {counted(result.num_updates, 'updates')}, "
        f"{counted(result.num_tokens, 'tokens')}, {result.wall_seconds:.1f} s on {result.device}; "
        f"{best}; {folder}"
    )
    if result.outcome == "did not learn":
        typer.echo("did not learn: the test score is no better than the best constant guess")
    is_packed = training.RunFolder(training.run_path(folder)).is_packed
    if with_page and result.best_update is not None and not is_packed:
        from staircase_attention.experiments.page import write_page

        try:
            typer.echo(f"wrote {write_page(folder, device=device)}")
        # A run that is finished stays so, whatever its page lacks.
        except Exception as error:
            typer.echo(f"staircase: no report.html: {one_line(error)}", err=True)
    return status


def pack(
    run: arguments.TrainedRun,
    folder: arguments.NewFolder,
    *,
    checkpoint: arguments.CheckpointName = "best",
    numbers: Annotated[str, typer.Option(help="bfloat16 or float32.")] = "bfloat16",
    average: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="RUN", help="Average the weights with those of this run; may be repeated."
        ),
    ] = None,
) -> None:
    """Pack a run's recipe, result and weights into a small folder."""
    averaged = average or ()
    written = training.pack(run, folder, checkpoint=checkpoint, numbers=numbers, average=averaged)
    num_bytes = sum(path.stat().st_size for path in written.rglob("*") if path.is_file())
    typer.echo(f"wrote {written}, {num_bytes / 1e6:.2f} MB")


def export(
    run: arguments.TrainedRun,
    folder: arguments.NewFolder,
    *,
    format: Annotated[
        str, typer.Option(help="`transformers`, or `onnx`: one decoding step of any model.")
    ] = "transformers",
    num_tokens: Annotated[
        int | None, typer.Option(help="onnx: longest stream, for a schedule whose state grows.")
    ] = None,
    checkpoint: arguments.CheckpointName = "best",
    trust_code: arguments.TrustCode = False,
) -> None:
    """Export a model: to Hugging Face Transformers, or to ONNX."""
    check_can_hold(folder, "the folder of an export")
    check_choice("--format", format, ("transformers", "onnx"))
    if format != "onnx" and num_tokens is not None:
        raise input_error("--num-tokens is for --format onnx", num_tokens, "leave it out")
    if folder.exists() and any(folder.iterdir()):
        raise input_error("an export needs a folder that is new or empty", folder, "name another")
    tokeniser = training.RunFolder(training.run_path(run)).tokeniser
    if format == "onnx":
        from staircase_attention.generation.onnx import export_onnx

        load = training.load_language_model if tokeniser.is_dir() else training.load_run
        model: Any = load(run, checkpoint=checkpoint, trust_code=trust_code).model
        save_folder(
            folder, lambda made: export_onnx(model, made / "step.onnx", num_tokens=num_tokens)
        )
        typer.echo(f"wrote {folder / 'step.onnx'}")
        return
    import_extra("transformers", needed_for="an export to Transformers", extra="huggingface")
    from staircase_attention.huggingface import export as export_model

    language = training.load_language_model(run, checkpoint=checkpoint, trust_code=trust_code)
    file = tokeniser / "tokenizer.json"
    written = export_model(
        language.model,  # type: ignore[arg-type]
        folder,
        # A byte tokeniser has no file: the export makes its own.
        tokenizer=file if file.is_file() else None,
        eos_token_id=language.tokeniser.end_symbol,
    )
    typer.echo(f"wrote {written}")
