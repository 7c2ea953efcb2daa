"""`generate()` carries the recurrent state: the same tokens as our own loop."""

import inspect
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from language_models import (
    SCHEDULES,
    VOCAB_SIZE,
    build,
    greedy,
    padded_left,
    padded_right,
    prompt,
)
from transformers import DynamicCache, GenerationMixin

from staircase_attention import Staircase, TransformerXL
from staircase_attention.huggingface import StateCache, wrap

EXACT = {"rtol": 0.0, "atol": 1e-9}
LENGTHS = (4, 9, 1, 9, 7)

only_where_new_tokens_suffice = pytest.mark.skipif(
    "next_sequence_length"
    not in inspect.signature(GenerationMixin.prepare_inputs_for_generation).parameters,
    reason="the first versions of Transformers 5 always want the whole sequence",
)


def generate(model, tokens, num_new=8, **options):
    options = {"do_sample": False, "max_new_tokens": num_new} | options
    return model.generate(tokens, **options)


@pytest.mark.parametrize("positions", ["relative", "rotary"])
@pytest.mark.parametrize("name", SCHEDULES)
def test_greedy_output_equals_our_own_for_every_row_of_a_padded_batch(name, positions):
    model = build(name, positions=positions)
    rows = [prompt(length, seed=seed) for seed, length in enumerate(LENGTHS)]
    tokens, mask = padded_left(rows, pad=3)
    made = generate(wrap(model), tokens, attention_mask=mask)
    for row, alone in zip(made, rows, strict=True):
        assert row[-8 - alone.shape[1] :].equal(greedy(model, alone, 8)[0])


@pytest.mark.parametrize("name", ["staircase", "cached", "feedback", "ladder"])
@settings(max_examples=8)
@given(data=st.data())
def test_a_masked_token_is_absent(name, data):
    model = build(name)
    wrapped = wrap(model)
    num_rows, time = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 9))
    bits = st.lists(st.booleans(), min_size=time, max_size=time)
    mask = torch.tensor(data.draw(st.lists(bits, min_size=num_rows, max_size=num_rows)))
    tokens, later = prompt(time, rows=num_rows), prompt(4, rows=num_rows, seed=1)
    # What a masked place holds does not matter, not even if there is no such symbol.
    holes = tokens.masked_fill(~mask, VOCAB_SIZE + 5)
    with torch.no_grad():
        output = wrapped(holes, attention_mask=mask.long())
        after = wrapped(later, past_key_values=output.past_key_values).logits
        for row in range(num_rows):
            alone, state = model(tokens[row, mask[row]][None])
            torch.testing.assert_close(output.logits[row, mask[row]], alone[0], **EXACT)
            torch.testing.assert_close(after[row], model(later[row][None], state)[0][0], **EXACT)


def test_after_the_prompt_one_token_is_fed_per_step(monkeypatch):
    model = build()
    fed = []
    whole = model.forward

    def spy(tokens, *others, **options):
        fed.append(tokens.shape[1])
        return whole(tokens, *others, **options)

    monkeypatch.setattr(model, "forward", spy)
    generate(wrap(model), prompt(7, rows=2), 6)
    assert fed == [7, 1, 1, 1, 1, 1]


@pytest.mark.parametrize("options", [{"use_cache": False}, {"prefill_chunk_size": 5}])
def test_the_output_is_the_same_without_a_cache_and_with_a_prompt_in_pieces(options):
    model = wrap(build())
    tokens, mask = padded_left([prompt(13), prompt(4, seed=1)])
    whole = generate(model, tokens, attention_mask=mask)
    assert generate(model, tokens, attention_mask=mask, **options).equal(whole)


@torch.no_grad()
def best_beams(model, tokens, *, num_beams, num_new):
    """Beam search over whole sequences, without any state."""
    beams = [(0.0, tokens)]
    for _ in range(num_new):
        grown = []
        for score, sequence in beams:
            chances = model(sequence)[0][0, -1].float().log_softmax(-1)
            for symbol in range(VOCAB_SIZE):
                longer = torch.cat([sequence, torch.tensor([[symbol]])], dim=1)
                grown.append((score + float(chances[symbol]), longer))
        beams = sorted(grown, key=lambda beam: -beam[0])[:num_beams]
    return beams


@pytest.mark.parametrize("name", ["staircase", "cached", "feedback"])
def test_beam_search_equals_one_over_whole_sequences(name):
    model = build(name)
    rows = [prompt(4, seed=1), prompt(6, seed=2)]
    tokens, mask = padded_left(rows)
    found = generate(
        wrap(model),
        tokens,
        7,
        attention_mask=mask,
        num_beams=3,
        num_return_sequences=3,
        return_dict_in_generate=True,
        output_scores=True,
    )
    expected = [beam for row in rows for beam in best_beams(model, row, num_beams=3, num_new=7)]
    for sequence, score, (total, whole) in zip(
        found.sequences, found.sequences_scores, expected, strict=True
    ):
        assert sequence[-whole.shape[1] :].equal(whole[0])
        assert math.isclose(float(score), total / 7, rel_tol=1e-4)


@pytest.mark.parametrize("name", ["staircase", "ladder"])
def test_generation_goes_on_from_a_cache(name):
    model = wrap(build(name))
    tokens, mask = padded_left([prompt(5), prompt(3, seed=1)])
    whole = generate(model, tokens, 11, attention_mask=mask)
    cache = StateCache()
    begun = generate(model, tokens, 5, attention_mask=mask, past_key_values=cache)
    assert cache.get_seq_length() == 9
    longer = torch.cat([mask, torch.ones(2, 5, dtype=torch.int64)], dim=1)
    gone_on = generate(model, begun, 6, attention_mask=longer, past_key_values=cache)
    assert gone_on.equal(whole)


@only_where_new_tokens_suffice
def test_new_tokens_alone_go_on_from_a_cache_under_a_mask_of_all():
    model = wrap(build())
    first, second = prompt(5), prompt(3, seed=1)
    whole = torch.cat([first, second], dim=1)
    with torch.no_grad():
        cache = model(first).past_key_values
    made = generate(model, second, past_key_values=cache, attention_mask=torch.ones_like(whole))
    assert made[:, 3:].equal(generate(model, whole)[:, 8:])


@only_where_new_tokens_suffice
def test_a_cache_that_has_seen_all_is_refused_as_tokens_would_be_fed_twice():
    model = wrap(build())
    with torch.no_grad():
        cache = model(prompt(5)).past_key_values
    with pytest.raises(ValueError, match=r"got 5 tokens with a cache of 5; "):
        generate(model, prompt(5), past_key_values=cache)
    with pytest.raises(ValueError, match=r"got 3 tokens with a cache of 5; "):
        generate(model, prompt(3), past_key_values=cache)


def test_a_cache_can_be_made_from_a_state():
    model = build()
    begun, new = prompt(5, rows=2), prompt(2, rows=2, seed=1)
    with torch.no_grad():
        _, state = model(begun)
        whole, _ = model(torch.cat([begun, new], dim=1))
        output = wrap(model)(new, past_key_values=StateCache(state))
    torch.testing.assert_close(output.logits, whole[:, 5:], **EXACT)
    assert output.past_key_values.get_seq_length() == 7


def test_a_cache_repeats_selects_and_forgets_rows():
    model = wrap(build())
    with torch.no_grad():
        cache = model(prompt(5, rows=2)).past_key_values
    cache.batch_repeat_interleave(2)
    assert cache.batch_size == 4
    cache.batch_select_indices(torch.tensor([3, 0]))
    assert (cache.batch_size, cache.state.lengths) == (2, (5, 5))
    with pytest.raises(ValueError, match="only columns of its latest call"):
        cache.crop(1)
    cache.reset()
    assert (cache.state, cache.get_seq_length(), cache.batch_size) == (None, 0, -1)


FOREIGN = {
    "another model's state": lambda: StateCache(build(TransformerXL(span=3))(prompt(4))[1]),
    "another shape's state": lambda: StateCache(
        build(Staircase(chunk_size=3, num_passes=2))(prompt(4))[1]
    ),
    "a state of another batch": lambda: StateCache(build()(prompt(4, rows=2))[1]),
    "keys and values of Transformers": DynamicCache,
    "a bare state": lambda: build()(prompt(4))[1],
}


@pytest.mark.parametrize("name", FOREIGN)
def test_a_foreign_state_is_refused_in_one_line(name):
    with pytest.raises((ValueError, TypeError), match=r"^.* got .*; .*$"):
        wrap(build())(prompt(3), past_key_values=FOREIGN[name]())


WRONG_CALLS = {
    "a mask that is too short": {"attention_mask": torch.ones(1, 2)},
    "a mask of another batch": {"attention_mask": torch.ones(2, 3)},
    "a mask of four dimensions": {"attention_mask": torch.ones(1, 1, 3, 3)},
    "attention weights of padded rows": {
        "output_attentions": True,
        "attention_mask": torch.tensor([[0, 1, 1]]),
    },
    "tokens and embeddings": {"inputs_embeds": torch.ones(1, 3, 8)},
    "positions": {"position_ids": torch.arange(3)[None]},
    "no tokens": {"input_ids": None},
}


@pytest.mark.parametrize("name", WRONG_CALLS)
def test_unsupported_calls_are_refused_in_one_line(name):
    with pytest.raises(ValueError, match=r"^.* got .*; .*$"):
        wrap(build())(**{"input_ids": prompt(3)} | WRONG_CALLS[name])


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_cropped_cache_continues_as_if_it_had_not_seen_the_rest(name):
    model = wrap(build(name))
    tokens, mask = padded_left([prompt(9), prompt(4, seed=1)])
    with torch.no_grad():
        cache = model(tokens[:, :5], attention_mask=mask[:, :5]).past_key_values
        whole = model(tokens, attention_mask=mask).logits
        for lost in (-4, -1, 5):
            model(tokens[:, 5:], attention_mask=mask[:, 5:], past_key_values=cache)
            cache.crop(lost)
            left = cache.get_seq_length()
            assert left == (5 if lost in (-4, 5) else 8)
            rest = model(tokens[:, left:], attention_mask=mask[:, left:], past_key_values=cache)
            torch.testing.assert_close(rest.logits, whole[:, left:], **EXACT)
            cache.crop(left)
            if left == 8:
                with pytest.raises(ValueError, match=r"of its latest call.*, got 3 to forget; "):
                    cache.crop(5)
                cache = model(tokens[:, :5], attention_mask=mask[:, :5]).past_key_values


@pytest.mark.parametrize("name", ["staircase", "feedback"])
def test_guessing_ahead_gives_the_same_tokens(name):
    model = wrap(build(name))
    tokens = prompt(4).repeat(1, 3)
    guessed = generate(model, tokens, 12, prompt_lookup_num_tokens=2)
    assert guessed.equal(generate(model, tokens, 12))


@pytest.mark.parametrize("name", ["staircase", "ladder"])
def test_the_same_weights_in_fewer_passes_are_an_assistant(name, monkeypatch):
    model = build(name)
    assistant = wrap(model.with_schedule(model.schedule.with_passes(1)))
    config = assistant.generation_config
    config.num_assistant_tokens, config.num_assistant_tokens_schedule = 5, "constant"
    config.assistant_confidence_threshold = 0.0
    crops = []
    crop = StateCache.crop
    monkeypatch.setattr(StateCache, "crop", lambda cache, n: crops.append(n) or crop(cache, n))
    for seed in range(2):
        tokens = prompt(7, seed=seed)
        drafted = generate(wrap(model), tokens, 14, assistant_model=assistant)
        assert drafted.equal(generate(wrap(model), tokens, 14))
    # Some rounds were taken back further than one call.
    assert min(crops) < -1


def test_an_assistant_may_draft_any_number_of_tokens_which_are_all_taken_back():
    model = build()
    assistant = wrap(model.with_schedule(model.schedule.with_passes(1)))
    config = assistant.generation_config
    config.num_assistant_tokens, config.num_assistant_tokens_schedule = 70, "constant"
    config.assistant_confidence_threshold = 0.0
    drafted = generate(wrap(model), prompt(7), 80, assistant_model=assistant)
    assert drafted.equal(generate(wrap(model), prompt(7), 80))


@pytest.mark.parametrize("options", [{}, {"use_cache": False}])
@pytest.mark.parametrize("name", ["staircase", "ladder"])
def test_padding_on_the_right_leaves_what_is_generated_as_it_is(name, options):
    model = wrap(build(name))
    rows = [prompt(length, seed=length) for length in LENGTHS]
    tokens, mask, _ = padded_right(rows)
    made = generate(model, tokens, attention_mask=mask, **options)
    for row, alone in zip(made, rows, strict=True):
        assert row[-8:].equal(generate(model, alone)[0, -8:])


def test_tokens_may_be_given_as_vectors():
    model = wrap(build())
    rows = [prompt(5), prompt(3, seed=1)]
    tokens, mask = padded_left(rows)
    vectors = model.get_input_embeddings()(tokens)
    with torch.no_grad():
        expected = model(tokens, attention_mask=mask).logits
        assert model(inputs_embeds=vectors, attention_mask=mask).logits.equal(expected)
    whole = generate(model, tokens, attention_mask=mask)
    made = generate(model, None, inputs_embeds=vectors, attention_mask=mask)
    assert made[:, -8:].equal(whole[:, 5:])


@pytest.mark.parametrize("name", SCHEDULES)
def test_hidden_states_and_attentions_of_every_pass_come_with_the_same_logits(name):
    ours = build(name)
    model, tokens = wrap(ours), prompt(7, rows=2)
    with torch.no_grad():
        found = model(tokens, output_hidden_states=True, output_attentions=True)
        assert torch.equal(found.logits, model(tokens).logits)
        assert torch.equal(ours.output(found.hidden_states[-1]), found.logits)
        assert torch.equal(found.hidden_states[0], ours.embedding(tokens))
        applied = len(found.attentions)
        assert applied == len(ours.core.layers) * max(getattr(ours.schedule, "num_passes", 1), 1)
        assert len(found.hidden_states) == applied + 1
        assert {one.shape for one in found.attentions} == {(2, 2, 7, 7)}
        short = {"max_new_tokens": 3, "do_sample": False}
        wanted = {"output_hidden_states": True, "output_attentions": True}
        made = model.generate(tokens, return_dict_in_generate=True, **short, **wanted)
        assert torch.equal(made.sequences, model.generate(tokens, **short))
    assert [len(one) for one in made.hidden_states] == [applied + 1] * 3
    assert [one[0].shape[2] for one in made.attentions] == [7, 1, 1]
    assert model(tokens).hidden_states is None
