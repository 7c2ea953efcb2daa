"""Training on a corpus: every token in its place, episodes whole, scores a byte."""

import itertools
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
from small_runs import Interrupting, KilledError, final_bytes
from text_runs import learn_words, make_corpus, text_recipe

from staircase_attention.data import ByteTokeniser, HeldOut, prepare_text
from staircase_attention.data.tokenisers import train_bpe
from staircase_attention.evaluation import Score
from staircase_attention.training import load_language_model, load_run, pack, resume, train
from staircase_attention.training.dataset import IGNORED, EpisodeLanes, build_dataset


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return make_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.mark.parametrize("form", ["stream", "episodic"])
def test_a_run_on_a_corpus_says_bits_a_byte_and_resumes_bit_for_bit(tmp_path, corpus, form):
    recipe = text_recipe(corpus, form=form)
    result = train(recipe, tmp_path / "whole")
    assert result.status == "finished"
    expected = result.test["loss"] / math.log(2)
    split = corpus.split("test")
    expected *= split.num_tokens / split.num_bytes
    assert result.test["bits_per_byte"] == pytest.approx(expected)
    assert result.test["perplexity"] == pytest.approx(math.exp(result.test["loss"]))

    with pytest.raises(KilledError):
        train(recipe, tmp_path / "broken", progress=Interrupting(7))
    resume(tmp_path / "broken")
    assert final_bytes(tmp_path / "broken") == final_bytes(tmp_path / "whole")


@pytest.fixture(scope="module")
def words_run(tmp_path_factory):
    """A run with a learnt tokeniser, whose corpus is no longer there."""
    folder = tmp_path_factory.mktemp("words")
    corpus = make_corpus(folder / "made", tokeniser=learn_words())
    train(text_recipe(corpus), folder / "run")
    corpus.folder.rename(folder / "elsewhere")
    return folder / "run"


def test_a_language_model_speaks_without_its_corpus(words_run, tmp_path):
    language = load_language_model(pack(words_run, tmp_path / "packed"))
    assert language.decode(language.encode("the cat, é")) == "the cat, é".encode()
    assert language.model.vocab_size == language.tokeniser.vocab_size


def test_a_run_does_not_start_from_weights_for_other_symbols(words_run, tmp_path):
    size = load_language_model(words_run).tokeniser.vocab_size
    text = b"what came of it nobody can say, whoever was there or had been on some other day"
    other = train_bpe([text], vocab_size=size)
    assert other.vocab_size == size
    recipe = text_recipe(make_corpus(tmp_path / "made", tokeniser=other))
    named = f"byte-pair-{size} of {size}"
    message = (
        f"the tokeniser of the run, {named} symbols, got .*corpus with another {named}; prepare"
    )
    with pytest.raises(ValueError, match=message) as caught:
        train(recipe, tmp_path / "run", init=words_run)
    assert "--text" not in str(caught.value)
    with pytest.raises(ValueError, match=f"{message} .*--text"):
        load_run(words_run, corpus=recipe.task.folder)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("lost", ["tokeniser/settings.json", "tokeniser/tokenizer.json", ""])
def test_a_run_that_lost_a_file_of_its_tokeniser_is_not_packed(words_run, tmp_path, lost):
    run = Path(shutil.copytree(words_run, tmp_path / "run"))
    (run / lost).unlink() if lost else shutil.rmtree(run / "tokeniser")
    for use in (load_language_model, lambda run: pack(run, tmp_path / "packed")):
        with pytest.raises(ValueError, match=rf"a run's tokeniser must be .*{lost}.*; restore it"):
            use(run)
    assert not (tmp_path / "packed").exists()


def test_a_missing_corpus_is_refused_before_a_run_begins(tmp_path, corpus):
    recipe = text_recipe(corpus, task__folder=str(tmp_path / "nowhere"))
    with pytest.raises(ValueError, match="a corpus must have a manifest"):
        train(recipe, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("shares", "names"),
    [((0, 0), "train"), ((0, 0.15), "train, test"), ((0.15, 0), "train, valid")],
)
def test_a_corpus_without_what_a_run_is_scored_on_is_refused_before_it_begins(
    tmp_path, shares, names
):
    raw = make_corpus(tmp_path / "made").folder.parent / "raw"
    held_out = HeldOut(valid=shares[0], test=shares[1])
    recipe = text_recipe(prepare_text([raw], tmp_path / "corpus", held_out=held_out))
    message = rf"have the splits train, valid and test, got .*corpus with {names}; .*--valid and"
    with pytest.raises(ValueError, match=message) as caught:
        train(recipe, tmp_path / "run")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_a_run_whose_corpus_lost_a_split_is_loaded_but_does_not_go_on(tmp_path):
    corpus = make_corpus(tmp_path / "made")
    train(text_recipe(corpus), tmp_path / "run")
    (tmp_path / "run" / "result.json").unlink()
    corpus.folder.rename(tmp_path / "old")
    nothing = HeldOut(valid=0, test=0)
    prepare_text(
        [tmp_path / "made" / "raw"], corpus.folder, tokeniser=ByteTokeniser(), held_out=nothing
    )
    assert load_run(tmp_path / "run").data.num_inputs == corpus.tokeniser.vocab_size
    with pytest.raises(ValueError, match=r"must have the splits train, valid and test, got"):
        resume(tmp_path / "run")


@pytest.mark.parametrize("length", [16, 32, 1000])
def test_episodes_hold_every_token_once_and_never_reach_into_another_text(corpus, length):
    split = corpus.split("train")
    lanes = EpisodeLanes(split=split, num_lanes=3, segment_length=length, seed=None)
    tokens = []
    lengths = iter(lanes.lengths)
    for batch in lanes.once():
        for row in range(len(batch.inputs)):
            text, padding = np.split(batch.inputs[row], [next(lengths)])
            assert not padding.any()
            tokens.extend(text.tolist())
            answers = batch.targets[row]
            assert answers[: max(0, len(text) - 1)].tolist() == text[1:].tolist()
            assert (answers[max(0, len(text) - 1) :] == IGNORED).all()
    assert tokens == split.tokens(0, split.num_tokens).tolist()


def test_an_epoch_of_episodes_has_each_once_in_an_order_of_its_own(corpus):
    split = corpus.split("train")
    lanes = EpisodeLanes(split=split, num_lanes=1, segment_length=64, seed=3)
    count = len(lanes.starts)
    position, epochs = lanes.first_position(), []
    for _ in range(2):
        seen = []
        for _ in range(count):
            batch, position = lanes.batch(position)
            seen.append(tuple(batch.inputs[0].tolist()))
        epochs.append(seen)
    assert sorted(epochs[0]) == sorted(epochs[1])
    assert epochs[0] != epochs[1]


@pytest.mark.parametrize("num_tokens", [2, 64, 333, 10**9])
def test_a_score_of_a_stream_may_be_of_its_first_tokens_only(corpus, num_tokens):
    dealing = {"num_lanes": 3, "segment_length": 16, "num_tokens": num_tokens}
    batches = list(build_dataset(text_recipe(corpus)).batches("valid", **dealing))
    targets = np.concatenate([batch.targets for batch in batches], axis=1)
    split = corpus.split("valid")
    first = split.tokens(0, min(num_tokens, split.num_tokens))
    assert targets[targets != IGNORED].tolist() == first.tolist()


@pytest.mark.parametrize("num_tokens", [2, 64, 333, 10**9])
def test_a_score_of_episodes_may_be_of_the_first_tokens_only(corpus, num_tokens):
    dealing = {"num_lanes": 3, "segment_length": 16, "num_tokens": num_tokens}
    batches = list(build_dataset(text_recipe(corpus, form="episodic")).batches("valid", **dealing))
    split = corpus.split("valid")
    options = {"split": split, "seed": None, **dealing}
    lengths = EpisodeLanes(**options).lengths
    rows = np.concatenate([batch.inputs for batch in batches])
    given = [row[:length] for row, length in zip(rows, lengths, strict=False)]
    num_tokens = min(num_tokens, split.num_tokens)
    assert np.concatenate(given).tolist() == split.tokens(0, num_tokens).tolist()
    starts = {
        place
        for start, stop in itertools.pairwise([*split.document_starts.tolist(), split.num_tokens])
        for place in range(start, stop, 16)
        if place < num_tokens
    }
    assert sum(batch.num_answers for batch in batches) == num_tokens - len(starts)


def test_bits_a_byte_of_the_first_tokens_are_those_of_their_bytes(tmp_path):
    corpus = make_corpus(tmp_path / "made", tokeniser=learn_words())
    first = corpus.split("valid").tokens(0, 20)
    num_bytes = len(corpus.tokeniser.decode(first))
    data = build_dataset(text_recipe(corpus))
    facts = data.facts("valid", Score(loss=math.log(2), error=0.0, num_answers=20), 20)
    assert facts["bits_per_byte"] == pytest.approx(20 / num_bytes, rel=1e-12)
    whole = corpus.split("valid")
    assert 20 / num_bytes != pytest.approx(whole.num_tokens / whole.num_bytes, rel=1e-3)


@pytest.mark.parametrize("setting", ["evaluation_tokens", "segment_length"])
def test_one_token_of_an_episode_asks_for_nothing(setting, corpus):
    with pytest.raises(ValueError, match=rf"{setting} must be at least 2 .*, got 1; use more"):
        text_recipe(corpus, form="episodic", **{f"training__{setting}": 1})
    assert getattr(text_recipe(corpus, **{f"training__{setting}": 1}).training, setting) == 1


def test_texts_do_not_grow(corpus):
    with pytest.raises(ValueError, match=r"growth.first_tokens must be none for a corpus, got 32"):
        text_recipe(corpus, training__growth__first_tokens=32)


def test_a_language_model_has_learnt_if_its_loss_is_below_the_entropy_of_tokens(corpus):
    data = build_dataset(text_recipe(corpus))
    split = corpus.split("test")
    shares = np.unique(split.tokens(0, split.num_tokens), return_counts=True)[1] / split.num_tokens
    entropy = -float(np.sum(shares * np.log(shares)))
    for loss, expected in ((0.99 * entropy, True), (1.01 * entropy, False)):
        score = Score(loss=loss, error=0.5, num_answers=split.num_tokens)
        assert data.beats_constant("test", score) is expected


@pytest.mark.parametrize("name", ["train-00000.bin", "test-00000.bin", "valid-documents.bin"])
def test_no_score_of_a_changed_corpus_is_reported(name, tmp_path):
    """All files are read in the background; a run whose data changed ends without a result."""
    corpus = make_corpus(tmp_path)
    content = bytearray((corpus.folder / name).read_bytes())
    # The low byte of a number under 256: another token of the vocabulary.
    place = next(place for place in range(8, len(content), 8) if content[place + 1] == 0)
    content[place] ^= 1
    (corpus.folder / name).write_bytes(content)
    with pytest.raises(ValueError, match=rf"{name} must have the sha256 .*; copy it again"):
        train(text_recipe(corpus), tmp_path / "run")
    assert not (tmp_path / "run" / "result.json").exists()
