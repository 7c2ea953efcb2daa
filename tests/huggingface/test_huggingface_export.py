"""A folder is all that Transformers needs: model, tokeniser, pipeline."""

import json
import os
import runpy
import subprocess
import sys

import pytest
import torch
from language_models import build, greedy
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import AutoModelForCausalLM, AutoTokenizer, pipeline

from building import MODERN
from staircase_attention.data import ByteTokeniser, train_bpe
from staircase_attention.huggingface import byte_tokenizer, export, wrap

TEXT = ["the cat sat on the mat", "the mat sat on the cat", "a cat, a mat"] * 3


@pytest.fixture(scope="module")
def byte_model():
    return build(vocab_size=256, dtype=torch.float32)


@pytest.fixture(scope="module")
def byte_folder(byte_model, tmp_path_factory):
    return export(byte_model, tmp_path_factory.mktemp("export") / "bytes")


@pytest.fixture(scope="module")
def pairs():
    """A tokeniser of byte pairs, with a special symbol."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=270,
        special_tokens=["<end>"],
        initial_alphabet=alphabet,
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXT, trainer)
    return tokenizer


def test_bytes_that_are_no_text_are_marked_and_leave_the_rest_alone():
    assert byte_tokenizer().decode([104, 255, 105, 195]) == "h�i�"


@torch.no_grad()
def test_a_modern_core_comes_back_from_its_folder(tmp_path):
    model = build(vocab_size=256, dtype=torch.float32, **MODERN)
    loaded = AutoModelForCausalLM.from_pretrained(export(model, tmp_path / "modern"))
    tokens = torch.tensor([list(b"a text"), list(b"others")])
    first = loaded(tokens[:, :4], use_cache=True)
    second = loaded(tokens[:, 4:], past_key_values=first.past_key_values)
    found = torch.cat([first.logits, second.logits], dim=1)
    torch.testing.assert_close(found, model(tokens)[0], rtol=1e-4, atol=1e-4)


def test_the_pipeline_generates_text_alone_and_in_batches(byte_folder):
    generator = pipeline("text-generation", model=str(byte_folder))
    options = {"max_new_tokens": 6, "do_sample": False}
    texts = ["hello", "a rather longer text", "x"]
    alone = [generator(text, **options)[0]["generated_text"] for text in texts]
    together = generator(texts, batch_size=3, **options)
    assert [rows[0]["generated_text"] for rows in together] == alone
    model = build(vocab_size=256, dtype=torch.float32)
    for made, text in zip(alone, texts, strict=True):
        expected = greedy(model, torch.tensor([list(text.encode())]), 6)[0].tolist()
        assert made == bytes(expected).decode(errors="replace")


LOAD = """
import sys
import transformers
from transformers import AutoConfig, pipeline

folder, copy = sys.argv[1:]
generator = pipeline("text-generation", model=folder, trust_remote_code=True)
generator.model.save_pretrained(copy)
# As `transformers serve` does.
config = AutoConfig.from_pretrained(copy, trust_remote_code=True)
again = getattr(transformers, config.architectures[0]).from_pretrained(copy, trust_remote_code=True)
[made] = generator("the cat", max_new_tokens=8, do_sample=False)
text = generator.tokenizer("the cat", return_tensors="pt")
tokens = again.generate(**text, max_new_tokens=8, do_sample=False)[0]
print(made["generated_text"] == generator.tokenizer.decode(tokens))
print(tokens.tolist())
"""


def test_an_export_loads_where_the_package_was_not_imported(byte_folder, byte_model, tmp_path):
    command = [sys.executable, "-c", LOAD, str(byte_folder), str(tmp_path / "copy")]
    environment = os.environ | {"HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    is_same, tokens = done.stdout.splitlines()
    assert is_same == "True"
    text = torch.tensor([[*b"the cat"]])
    assert json.loads(tokens) == greedy(byte_model, text, 8)[0].tolist()


def test_the_code_of_an_export_says_what_to_install(byte_folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "staircase_attention.huggingface", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'staircase-attention\[huggingface"):
        runpy.run_path(str(byte_folder / "modeling_staircase.py"))


def test_an_export_has_a_chat_template_and_a_model_card(byte_folder):
    tokenizer = AutoTokenizer.from_pretrained(byte_folder)
    turns = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hm"}]
    assert tokenizer.apply_chat_template(turns, tokenize=False) == "hello\n\n\nhm\n\n\n"
    card = (byte_folder / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: transformers\n")
    assert "staircase (chunk_size=3, num_passes=3" in card


def test_whoever_may_read_the_config_may_read_the_weights(byte_folder):
    assert len({path.stat().st_mode for path in byte_folder.iterdir()}) == 1


def test_a_tokeniser_of_byte_pairs_goes_along(pairs, tmp_path):
    model = build("feedback", vocab_size=270, dtype=torch.float32)
    end = pairs.token_to_id("<end>")
    folder = export(model, tmp_path / "out", tokenizer=pairs, eos_token_id=end)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.eos_token_id == tokenizer.pad_token_id == end
    for text in [*TEXT, "unseen wörds"]:
        assert tokenizer(text).input_ids == [end, *pairs.encode(text).ids]
        assert tokenizer.decode(tokenizer(text).input_ids, skip_special_tokens=True) == text
    # A text that spells out a special symbol is only a text, unless one asks otherwise.
    assert tokenizer.decode(tokenizer("a cat<end>").input_ids[1:]) == "a cat<end>"
    assert end not in tokenizer("a cat<end>").input_ids[1:]
    assert tokenizer("a cat<end>", split_special_tokens=False).input_ids[-1] == end
    assert json.loads((folder / "generation_config.json").read_text())["eos_token_id"] == end
    made = pipeline("text-generation", model=str(folder))("the cat", max_new_tokens=4)
    assert made[0]["generated_text"].startswith("the cat")


@pytest.mark.parametrize("kind", ["bytes", "bytes with an end", "byte pairs"])
def test_texts_are_encoded_as_in_our_own_training_and_samples(kind, tmp_path):
    (tmp_path / "ours").mkdir()
    if kind == "byte pairs":
        ours = train_bpe((text.encode() for text in TEXT), vocab_size=270)
        ours.save(tmp_path / "ours")
        given = tmp_path / "ours" / "tokenizer.json"
    else:
        ours, given = ByteTokeniser(has_end_symbol=kind == "bytes with an end"), None
    model = build("feedback", vocab_size=ours.vocab_size, dtype=torch.float32)
    folder = export(model, tmp_path / "out", tokenizer=given, eos_token_id=ours.end_symbol)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    # Bytes without an end symbol end with byte 0. A text begins with the end of the one before.
    end = ours.end_symbol or 0
    assert (tokenizer.eos_token_id, tokenizer.bos_token_id, tokenizer.pad_token_id) == (end,) * 3
    assert len(tokenizer) == ours.vocab_size
    start = [] if ours.end_symbol is None else [end]
    if kind != "byte pairs":
        # A byte model needs no names: ids are the values of bytes, and the end comes after them.
        plain = AutoTokenizer.from_pretrained(export(model, tmp_path / "plain"))
        assert plain.eos_token_id == end
        assert plain("é").input_ids == tokenizer("é").input_ids == [*start, 195, 169]
    for text in [*TEXT, "unseen wörds\n", "<|endoftext|>", " a  b ", "", "a\0b", "日本 \U0001f600"]:
        [expected] = ours.encode_batch([text.encode()])
        assert tokenizer(text).input_ids == start + expected.tolist()
        assert tokenizer.decode(expected.tolist()) == text
    padded = tokenizer(["a", "the cat"], padding=True, return_tensors="pt")
    assert model(padded.input_ids)[0].isfinite().all()


def test_an_end_symbol_may_come_after_all_tokens(pairs, tmp_path):
    model = build("feedback", vocab_size=271, dtype=torch.float32)
    folder = export(model, tmp_path / "out", tokenizer=pairs, eos_token_id=270)
    assert AutoTokenizer.from_pretrained(folder).eos_token_id == 270
    # The tokeniser that was given is not changed by it.
    assert pairs.get_vocab_size() == 270
    wide = build("feedback", vocab_size=300, dtype=torch.float32)
    with pytest.raises(ValueError, match=r"or the one after them, got 290; "):
        export(wide, tmp_path / "other", tokenizer=pairs, eos_token_id=290)
    assert not (tmp_path / "other").exists()


def test_nothing_is_added_to_a_text_without_an_end(pairs, tmp_path):
    template = Tokenizer.from_str(pairs.to_str())
    template.post_processor = processors.TemplateProcessing(
        single="<end> $A", special_tokens=[("<end>", 0)]
    )
    template.enable_truncation(2)
    template.enable_padding(length=40)
    model = build("feedback", vocab_size=270, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(export(model, tmp_path / "out", tokenizer=template))
    assert tokenizer("the cat sat").input_ids == pairs.encode("the cat sat").ids


def test_a_model_of_other_symbols_goes_without_a_tokeniser(tmp_path):
    folder = export(build(), tmp_path)
    assert not (folder / "tokenizer.json").exists()
    assert AutoModelForCausalLM.from_pretrained(folder).config.vocab_size == 29


def test_what_cannot_be_exported_is_refused_before_anything_is_written(pairs, tmp_path):
    target = tmp_path / "new" / "out"
    with pytest.raises(ValueError, match=r"vocab_size = 29, got one with ids up to 269; "):
        export(build(), target, tokenizer=pairs)
    with pytest.raises(ValueError, match=r"got .*none\.json \(No such file.*\); save it again"):
        export(build(), target, tokenizer=tmp_path / "none.json")
    (tmp_path / "broken.json").write_text("{}")
    with pytest.raises(ValueError, match=r"got .*broken\.json \(.*\); save it again"):
        export(build(), target, tokenizer=str(tmp_path / "broken.json"))
    with pytest.raises(ValueError, match=r"eos_token_id must be .* got 29; "):
        export(build(), target, eos_token_id=29)
    with pytest.raises(ValueError, match=r"new or empty, got .*; name another"):
        export(build(), tmp_path)
    assert not target.parent.exists()


def test_an_export_that_fails_leaves_nothing(tmp_path, monkeypatch):
    def fail(*_, **__):
        raise OSError("no room")

    monkeypatch.setattr(type(wrap(build())), "save_pretrained", fail)
    with pytest.raises(OSError, match="no room"):
        export(build(), tmp_path / "out")
    assert not any(tmp_path.iterdir())
