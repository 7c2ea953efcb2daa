"""Language recipes for two CPU cores: small models of bytes or word pieces, minutes a run.

They train on the same prepared corpora as the recipes of the paper's size, and are scored on the
first part of the validation and test data only, so that an evaluation takes seconds.
"""

from staircase_attention.checks import check_choice
from staircase_attention.layers import CoreConfig
from staircase_attention.schedules import (
    CachedStaircase,
    FeedbackTransformer,
    Ladder,
    Schedule,
    Staircase,
    TransformerXL,
)
from staircase_attention.training import (
    CorpusChoice,
    FamilyModel,
    LSTMModel,
    OptimizerConfig,
    Recipe,
    TrainingConfig,
)

CORPORA = {
    "enwik8-small": CorpusChoice(folder="corpora/enwik8"),
    "reddit-small": CorpusChoice(folder="corpora/reddit"),
    "reddit-episodic-small": CorpusChoice(folder="corpora/reddit", form="episodic"),
    "base-small": CorpusChoice(folder="corpora/base"),
}
"""What each group trains on."""
SCHEDULES: dict[str, Schedule] = {
    "staircase": Staircase(chunk_size=16, num_passes=2),
    "cached-staircase": CachedStaircase(chunk_size=16, num_window_chunks=4, num_passes=1),
    "ladder": Ladder(num_passes=2, span=64),
    "transformer-xl": TransformerXL(span=64),
    "feedback": FeedbackTransformer(span=32),
}
LSTM = "lstm"
EPISODE = 256
"""Tokens of an episode, which fills its segment."""


def small_language(group: str, row: str) -> Recipe:
    """A model of a group of small language recipes.

    >>> small_language("enwik8-small", "ladder").task.folder
    'corpora/enwik8'
    """
    check_choice("a group of small language recipes", group, CORPORA)
    check_choice(f"a row of {group}", row, (*SCHEDULES, LSTM))
    corpus = CORPORA[group]
    return Recipe(
        name=f"{group}/{row}",
        task=corpus,
        model=_model(row),
        training=_training(EPISODE if corpus.form == "episodic" else 64),
    )


def small_language_recipes() -> list[Recipe]:
    """All small language recipes."""
    return [small_language(group, row) for group in CORPORA for row in (*SCHEDULES, LSTM)]


def _model(row: str) -> FamilyModel | LSTMModel:
    if row == LSTM:
        return LSTMModel(width=156, num_layers=2)
    core = CoreConfig(width=128, num_layers=2, num_heads=4)
    return FamilyModel(core=core, schedule=SCHEDULES[row])


def _training(segment_length: int) -> TrainingConfig:
    return TrainingConfig(
        num_updates=1_000,
        num_lanes=16,
        segment_length=segment_length,
        optimizer=OptimizerConfig(
            kind="adamw",
            learning_rate=2e-3,
            beta2=0.98,
            warm_up=50,
            decay="cosine",
            final_fraction=0.1,
            gradient_clip=1.0,
        ),
        log_every=20,
        evaluate_every=100,
        checkpoint_every=100,
        evaluation_lanes=16,
        evaluation_tokens=16_384,
    )
