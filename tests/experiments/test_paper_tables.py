"""The paper's numbers in the package are those that its tables print."""

import pytest

from staircase_attention.experiments import paper_summary, paper_tables, paper_training
from staircase_attention.schedules import PaperRow

# Lines of the paper's source: model, recurrent steps, step size, forward size, valid, test.
RANDOM_WALK = r"""
Transformer-XL & 1 & - & - & 90.1 $\pm$ 4.6 & 90.1 $\pm$ 4.6 \\
Feedback Trans. & 1 & 64 & 1 & 0.1 $\pm$ 0.0 & 0.1 $\pm$ 0.0 \\
Staircase & 8 & 64 & 8 & 0.2 $\pm$ 0.1 & 0.2 $\pm$ 0.1 \\
Staircase & 4 & 64 & 16 & 0.2 $\pm$ 0.2 & 0.2 $\pm$ 0.2 \\
Staircase & 2 & 64 & 32 & 1.0 $\pm$ 1.3 & 1.0 $\pm$ 1.2 \\
Cached Staircase & 1 & 256 & 4 & 0.1 $\pm$ 0.0 & 0.1 $\pm$ 0.0\\
Cached Staircase & 1 & 256 & 8 & 1.9 $\pm$ 2.0 & 1.9 $\pm$ 2.0 \\
Cached Staircase & 1 & 256 & 16 & 27.2 $\pm$ 8.0 & 27.3 $\pm$ 8.2 \\
Global Cached Staircase & 1 & 512 & 8 & 0.0 $\pm$ 0.0 & 0.0 $\pm$ 0.0 \\
Global Cached Staircase & 1 & 512 & 16 & 1.4 $\pm$ 0.6 & 1.3 $\pm$ 0.5\\
Global Cached Staircase & 1 & 512 & 32 & 52.4 $\pm$ 16.4 & 52.4 $\pm$ 16.4 \\
Ladder & 2 & - & - & 75.2 $\pm$ 12.5 & 75.1 $\pm$ 12.6 \\
Ladder & 4 & - & - & 35.6 $\pm$ 5.3 & 35.5 $\pm$ 5.3 \\
Ladder & 8 & - & - & 3.1 $\pm$ 1.6 & 3.2 $\pm$ 1.6 \\
"""
ALGORITHM = r"""
Transformer-XL & - & - & - & 59.1 $\pm$ 12.5 & 59.1 $\pm$ 12.4 \\
Feedback Trans. & 1 & 32 & 1 & 0.3 $\pm$ 0.0 & 0.3 $\pm$ 0.0 \\
Staircase & 8 & 64 & 8 & 12.8 $\pm$ 16.5 & 12.6 $\pm$ 16.2 \\
Staircase & 4 & 64 & 16 & 0.5 $\pm$ 0.5 & 0.5 $\pm$ 0.7 \\
Staircase & 2  & 64 & 32 & 0.6 $\pm$ 0.2 & 0.5 $\pm$ 0.2 \\
Cached Staircase & 1 & 64 & 4 & 24.6 $\pm$ 21.8 & 24.3 $\pm$ 21.7 \\
Cached Staircase & 1 & 64 & 8 & 31.7 $\pm$ 28.7 & 31.3 $\pm$ 28.7\\
Cached Staircase & 1 & 64 & 16 & 27.8 $\pm$ 13.6 & 27.3 $\pm$ 13.6 \\
Global Cached Staircase & 1 & 512 &  8 & 0.0 $\pm$ 0.1 & 0.0 $\pm$ 0.1 \\
Global Cached Staircase & 1 & 512 & 16 & 7.1 $\pm$ 19.3 & 7.1 $\pm$ 19.3\\
Global Cached Staircase & 1 & 512 & 32 & 20.0 $\pm$ 23.0 & 19.7 $\pm$ 22.7 \\
Ladder & 2 & - & - & 64.6 $\pm$ 15.5 & 64.4 $\pm$ 15.3 \\
Ladder & 4 & - & - & 74.3 $\pm$ 9.7 & 74.0 $\pm$ 9.4 \\
Ladder & 8 & - & - & 78.9 $\pm$ 6.4 & 78.6 $\pm$ 6.5 \\
"""


def find_paper_row(identifier):
    table, _, name = identifier.partition("/")
    return paper_tables()[table].rows[name]


@pytest.mark.parametrize(
    ("table", "printed"), [("random-walk", RANDOM_WALK), ("algorithm", ALGORITHM)]
)
def test_state_tracking_tables_hold_what_is_printed(table, printed):
    rows = paper_tables()[table].rows.values()
    lines = printed.strip().splitlines()
    assert len(rows) == len(lines)
    for row, line in zip(rows, lines, strict=True):
        model, *cells = [cell.strip() for cell in line.removesuffix(r"\\").split("&")]
        sizes = [None if cell == "-" else int(cell) for cell in cells[:3]]
        words = dict(zip(("recurrent_steps", "step_size", "forward_size"), sizes, strict=True))
        assert row.model == model.replace("Trans.", "Transformer")
        assert row.words == PaperRow(**words)
        assert [str(row.valid), str(row.test)] == [c.replace(r"$\pm$", "±") for c in cells[3:]]


@pytest.mark.parametrize(
    ("identifier", "valid", "test", "milliseconds"),
    [
        ("reddit/feedback", 25.8, 25.5, 3260),
        ("reddit/staircase-n8-c32", 22.9, 22.6, 1147),
        ("reddit/universal-transformer-4", 34.9, 34.5, 88),
        ("reddit-step-size/staircase-n4-c32", 23.8, None, 605),
        ("reddit-layer-pattern/aaaabbbb", 23.8, None, None),
        ("reddit-episodic/staircase-n8-c32", 24.3, 24.0, None),
        ("enwik8/ladder-4", 1.12, 1.11, None),
    ],
)
def test_language_tables_hold_what_is_printed(identifier, valid, test, milliseconds):
    row = find_paper_row(identifier)
    assert row.valid is not None
    assert row.valid.mean == valid
    assert row.valid.deviation is None
    assert (row.test and row.test.mean) == test
    assert row.batch_milliseconds == milliseconds


def test_every_table_is_there_in_full():
    sizes = {name: len(table.rows) for name, table in paper_tables().items()}
    assert sizes == {
        "random-walk": 14,
        "algorithm": 14,
        "reddit": 13,
        "reddit-step-size": 7,
        "reddit-layer-pattern": 7,
        "reddit-episodic": 7,
        "enwik8": 10,
    }
    # In spite of its heading.
    assert paper_tables()["enwik8"].unit == "bits per character"


def test_global_cached_rows_were_trained_for_longer_and_cached_ones_less_often():
    for table, usual in (("random-walk", 50_000), ("algorithm", 100_000)):
        for row in paper_tables()[table].rows.values():
            is_global = row.model == "Global Cached Staircase"
            assert row.num_updates == (400_000 if is_global else usual)
            assert row.num_seeds == (5 if row.model == "Cached Staircase" else 10)


def test_summary_has_five_models_on_five_tasks_and_points_at_their_rows():
    summary = {(entry["task"], entry["model"]): entry for entry in paper_summary()}
    assert len(summary) == 25
    assert summary["algorithm", "Ladder"]["value"] == 45.1
    assert summary["base", "Staircase"]["value"] == 23.0
    assert summary["base", "Staircase"]["split"] == "valid"
    assert summary["random-walk", "Ladder"]["span"] == 512
    for entry in summary.values():
        assert (entry["row"] is None) == (entry["task"] == "base")
        if entry["row"] is not None:
            assert find_paper_row(entry["row"]).model == entry["model"]
        if entry["task"] in ("reddit", "enwik8"):
            assert find_paper_row(entry["row"]).test.mean == entry["value"]


def test_training_facts_are_the_appendix_s():
    for task, num_lanes, num_updates in (("random-walk", 512, 50_000), ("algorithm", 256, 100_000)):
        facts = paper_training(task)
        core, training, optimizer = facts.core, facts.training, facts.training.optimizer
        assert (core.num_layers, core.width, core.num_heads) == (4, 256, 4)
        assert (core.dropout, core.embedding_dropout) == (0.2, 0.0)
        assert (optimizer.kind, optimizer.decay) == ("adam", "constant")
        assert optimizer.learning_rate == 1e-4
        assert (optimizer.gradient_clip, optimizer.warm_up, facts.num_seeds) == (0.1, 1000, 10)
        assert training.segment_length == 128
        assert (training.num_lanes, training.num_updates) == (num_lanes, num_updates)
    assert paper_training("reddit").core.width == 1024
    assert paper_training("base").training.num_updates == 80_000
