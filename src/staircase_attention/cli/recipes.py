"""`staircase recipes`: what can be trained."""

import json
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from staircase_attention.training.recipe import Recipe


def recipes(
    name: Annotated[
        str | None, typer.Argument(metavar="[RECIPE]", help="print all settings of this one")
    ] = None,
) -> None:
    """List all recipes, or print one with all its settings."""
    from staircase_attention.experiments import catalog

    if name is not None:
        typer.echo(json.dumps(catalog.find_recipe(name).to_plain(), indent=2))
        return
    everything = catalog.recipes()
    width = max(len(name) for name in everything)
    for recipe in everything.values():
        config = recipe.training
        budget = f"{config.num_updates:>7,} x {config.num_lanes:>3} x {config.segment_length:>3}"
        typer.echo(f"{recipe.name:<{width}}  {budget}  {describe_model(recipe)}")
    typer.echo("(updates x batch x segment; `staircase recipes RECIPE` prints all settings)")


def describe_model(recipe: "Recipe") -> str:
    """The model's kind and its options on one line."""
    from staircase_attention.training.recipe import FamilyModel

    model = recipe.model
    if isinstance(model, FamilyModel):
        options = model.schedule.to_dict()
        name = options.pop("name")
        return " ".join([name, *(f"{key}={value}" for key, value in options.items())])
    return f"lstm width={model.width} num_layers={model.num_layers}"
