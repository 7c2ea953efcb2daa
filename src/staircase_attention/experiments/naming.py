"""How reports call the models."""

from staircase_attention.schedules import PaperRow
from staircase_attention.training import FamilyModel, Recipe

MODEL_NAMES = {
    "staircase": "Staircase",
    "cached-staircase": "Cached Staircase",
    "global-cached-staircase": "Global Cached Staircase",
    "ladder": "Ladder",
    "transformer-xl": "Transformer-XL",
    "universal-transformer": "Universal Transformer",
    "feedback-transformer": "Feedback Transformer",
    "memory-network": "Memory Network",
}
"""The paper's names of the schedules."""
LSTM_NAME = "LSTM"


def model_name(recipe: Recipe) -> str:
    """The paper's name of a recipe's model."""
    if not isinstance(recipe.model, FamilyModel):
        return LSTM_NAME
    name = recipe.model.schedule.name
    return MODEL_NAMES.get(name, name)


def table_words(recipe: Recipe) -> PaperRow:
    """The recipe in the words of the paper's tables; they have none for an LSTM."""
    if isinstance(recipe.model, FamilyModel):
        return recipe.model.schedule.paper_row
    return PaperRow(recurrent_steps=None, step_size=None, forward_size=None)
