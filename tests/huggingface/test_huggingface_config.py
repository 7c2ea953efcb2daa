"""A config keeps a model's shape through JSON, and refuses wrong values."""

import json
from dataclasses import asdict

import pytest
from language_models import SCHEDULES
from transformers import AutoConfig, AutoModelForCausalLM

from building import MODERN
from staircase_attention import CoreConfig, UniversalTransformer
from staircase_attention.huggingface import StaircaseConfig

SMALL = {"width": 8, "num_layers": 1, "num_heads": 2}


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_config_comes_back_from_json(name, tmp_path):
    core = CoreConfig(
        width=12,
        num_layers=1,
        num_heads=3,
        feed_forward_width=7,
        dropout=0.1,
        max_distance=9,
        **MODERN,
    )
    config = StaircaseConfig(
        vocab_size=11,
        schedule=SCHEDULES[name],
        **asdict(core),
        eos_token_id=[3, 4],
        pad_token_id=0,
    )
    config.save_pretrained(tmp_path)
    read = AutoConfig.from_pretrained(tmp_path)
    assert isinstance(read, StaircaseConfig)
    assert read.core == core
    assert read.make_schedule() == SCHEDULES[name]
    assert (read.vocab_size, read.eos_token_id, read.pad_token_id) == (11, [3, 4], 0)
    assert read.to_diff_dict() == config.to_diff_dict()


def test_the_file_holds_defaults_too_and_sizes_have_their_usual_names(tmp_path):
    StaircaseConfig().save_pretrained(tmp_path)
    written = json.loads((tmp_path / "config.json").read_text())
    core = {*asdict(CoreConfig(**SMALL))} - {"reference", "options"}
    assert {"vocab_size", "schedule", *core} <= set(written)
    config = AutoConfig.for_model("staircase-attention", **SMALL)
    assert (config.hidden_size, config.num_hidden_layers, config.num_attention_heads) == (8, 1, 2)


WRONG = {
    "no symbols": {"vocab_size": 0},
    "symbols in words": {"vocab_size": "many"},
    "heads that do not divide": {"width": 8, "num_heads": 3},
    "dropout of one": {"dropout": 1.0},
    "unknown positions": {"positions": "absolute"},
    "unknown schedule": {"schedule": {"name": "stairway", "chunk_size": 2}},
    "a schedule without a name": {"schedule": {"chunk_size": 2}},
    "no schedule": {"schedule": None},
    "code in the place of a name": {"schedule": {"name": "evil.py:Evil"}},
    "a schedule with a typo": {"schedule": {"name": "staircase", "chunk_sise": 2, "num_passes": 2}},
    "an empty chunk": {"schedule": {"name": "staircase", "chunk_size": 0, "num_passes": 2}},
    "a deep universal transformer": {
        "num_layers": 2,
        "schedule": UniversalTransformer(num_passes=2, span=4),
    },
    "padding outside of the symbols": {"pad_token_id": 256},
    "a negative end": {"eos_token_id": -1},
    "an end in words": {"eos_token_id": ["stop"]},
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_config_is_refused_in_one_line(name):
    with pytest.raises((ValueError, TypeError), match=r"^.* got .*; .*$"):
        StaircaseConfig(**WRONG[name])


OWN = """
from dataclasses import dataclass
from pathlib import Path
from staircase_attention import TransformerXL

Path(__file__).with_name("has run").touch()

@dataclass(frozen=True, kw_only=True)
class Own(TransformerXL):
    name = "own"
"""


def test_code_that_a_config_names_runs_only_if_the_user_trusts_it(tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    schedule = {"reference": f"{tmp_path / 'own.py'}:Own", "span": 4}
    written = StaircaseConfig(**SMALL).to_dict() | {"schedule": schedule}
    (tmp_path / "config.json").write_text(json.dumps(written))
    for read in (AutoConfig.from_pretrained, StaircaseConfig.from_pretrained):
        with pytest.raises(ValueError, match=r"got .*own\.py, which you never trained with"):
            read(tmp_path)
    assert not (tmp_path / "has run").exists()
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(tmp_path, trust_code=True))
    assert type(model.sequence_model.schedule).__name__ == "Own"
    assert (tmp_path / "has run").exists()
