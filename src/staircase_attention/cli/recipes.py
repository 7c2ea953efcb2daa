"""`staircase recipes`: what can be trained."""

import json
from typing import Annotated

import typer

from staircase_attention.experiments import find_recipe
from staircase_attention.experiments import recipes as all_recipes
from staircase_attention.training import FamilyModel, Recipe


def recipes(
    name: Annotated[
        str | None, typer.Argument(metavar="[RECIPE]", help="print this one, complete")
    ] = None,
) -> None:
    """List all recipes, or print one with all its settings."""
    if name is not None:
        typer.echo(json.dumps(find_recipe(name).to_plain(), indent=2))
        return
    width = max(len(name) for name in all_recipes())
    for recipe in all_recipes().values():
        config = recipe.training
        budget = f"{config.num_updates:>7,} x {config.num_lanes:>3} x {config.segment_length:>3}"
        typer.echo(f"{recipe.name:<{width}}  {budget}  {model_words(recipe)}")
    typer.echo("(updates x batch x segment; `staircase recipes RECIPE` prints all settings)")


def model_words(recipe: Recipe) -> str:
    """The model in a few words."""
    model = recipe.model
    if isinstance(model, FamilyModel):
        options = {key: value for key, value in model.schedule.to_dict().items() if key != "name"}
        shown = " ".join(f"{key}={value}" for key, value in options.items())
        return f"{model.schedule.name} {shown}"
    return f"lstm width={model.width} num_layers={model.num_layers}"
