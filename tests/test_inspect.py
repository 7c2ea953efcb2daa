"""What is seen inside of a model is what its definition says, and looking changes nothing."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from building import EXACT, SCHEDULES, build, example_models, models, name_of, random_tokens, tokens
from oracle import oracle_logits
from staircase_attention import CoreConfig, Ladder, Staircase
from staircase_attention.experiments.figures import save
from staircase_attention.inspect import inspect, lens, lens_figure, lens_table

each_model = pytest.mark.parametrize("model", example_models(), ids=name_of)


def cut_at(batch, place):
    return [part for part in batch.tensor_split([place], dim=1) if part.shape[1]]


def inspect_pieces(model, pieces, **options):
    found, state = [], None
    for piece in pieces:
        found.append(inspect(model, piece, state, **options))
        state = found[-1].state
    return found


@pytest.mark.parametrize("name", SCHEDULES)
@settings(max_examples=6)
@given(data=st.data(), order=st.sampled_from(["window", "chunk"]))
@torch.no_grad()
def test_hidden_states_keys_and_weights_are_those_of_the_oracle(name, data, order):
    model = data.draw(models(name))
    batch = data.draw(tokens(max_batch=2, max_length=11))
    pieces = cut_at(batch, data.draw(st.integers(0, batch.shape[1])))
    trace = {}
    oracle_logits(dict(model.named_parameters()), model.config, model.schedule, batch, trace=trace)
    recurring, prelude, _ = model.config.depth
    offset = {"prelude": recurring, "coda": recurring + prelude}
    start = 0
    for seen in inspect_pieces(model, pieces, order=order):
        assert len(set(seen.path)) == len(seen.path)
        for at, layer in seen.path:
            number, turn = layer + offset.get(at, 0), 0 if at in offset else at - 1
            attention, hidden = seen.attention(at, layer), seen.hidden(at, layer)
            for token in range(seen.num_tokens):
                position = start + token
                expected = trace["hidden", number, position][turn]
                torch.testing.assert_close(hidden[:, token], expected, **EXACT)
                columns = [place + start for place in seen.key_places]
                for head in range(model.config.num_heads):
                    weights = torch.zeros(len(batch), start + seen.num_tokens).double()
                    # The first token of a Feedback Transformer has nothing to attend to.
                    if ("weights", number, position, head) in trace:
                        weights[:, : position + 1] = trace["weights", number, position, head][turn]
                    mine = attention[:, head, token]
                    torch.testing.assert_close(mine, weights[:, columns], **EXACT)
                    torch.testing.assert_close(mine.sum(-1), weights.sum(-1), **EXACT)
                if ("key", number, position) in trace and model.config.positions == "relative":
                    key = seen.keys(at, layer)[:, :, token].flatten(1)
                    torch.testing.assert_close(key, trace["key", number, position][turn], **EXACT)
        start += seen.num_tokens


@each_model
@pytest.mark.parametrize("order", ["window", "chunk"])
def test_looking_changes_no_bit_of_logits_state_or_gradients(model, order):
    batch = random_tokens(3, 11)
    _, state = model(batch[:, :4])
    state = state.detach().reset([False, True, False])
    plain, after = model(batch[:, 4:], state, order=order)
    seen = inspect(model, batch[:, 4:], state, order=order)
    assert torch.equal(plain, seen.logits)
    assert torch.equal(plain, seen.logits_after(seen.num_passes))
    for one, other in zip(after.streams, seen.state.streams, strict=True):
        assert all(map(torch.equal, one.tensors, other.tensors))
    parameters = [one for one in model.parameters() if one.requires_grad]
    mine, theirs = (
        torch.autograd.grad(logits.sum(), parameters, allow_unused=True)
        for logits in (seen.logits, plain)
    )
    for one, other in zip(mine, theirs, strict=True):
        assert one is other or torch.equal(one, other)


@each_model
def test_cached_keys_are_those_of_the_state(model):
    batch = random_tokens(2, 8)
    seen = inspect(model, batch[:, 3:], model(batch[:, :3])[1])
    [stream] = seen.state.streams
    for number, held in enumerate(stream.cache):
        kept = [at - 3 for part in stream.cached for at in part if at >= 3]
        keys = seen.keys("cached", number)[:, :, kept]
        torch.testing.assert_close(keys, held.keys[:, :, held.num_tokens - len(kept) :], **EXACT)


@pytest.mark.parametrize("settings", [{}, {"num_prelude_layers": 1, "num_coda_layers": 1}])
def test_an_earlier_pass_says_what_a_shallower_ladder_says(settings):
    core = CoreConfig(width=8, num_layers=2, num_heads=2, injection="add", **settings)
    model, batch = build(Ladder(num_passes=4, span=5), core), random_tokens(2, 13)
    seen = inspect(model, batch)
    for number in range(1, 5):
        less = model.with_schedule(Ladder(num_passes=number, span=5))
        torch.testing.assert_close(seen.logits_after(number), less(batch)[0], **EXACT)


def test_the_lens_has_every_pass_of_every_token():
    model, batch = build(Staircase(chunk_size=3, num_passes=3)), random_tokens(1, 40)
    seen = inspect(model, batch)
    words = [f"in{token}" for token in batch[0].tolist()]
    answers = [None, *(token % 5 for token in batch[0, 1:].tolist())]
    logits = [seen.logits_after(number) for number in range(1, seen.num_passes + 1)]
    places = lens(logits, words, answers, "abcde")
    assert [place.token for place in places] == words
    assert places[0].answer is None
    for at, place in list(enumerate(places))[1:]:
        for number in range(3):
            chances = seen.logits_after(number + 1)[0, at].softmax(-1)
            assert place.probabilities[number] == pytest.approx(chances[answers[at]].item())
            assert place.likeliest[number][0][0] == "abcde"[chances.argmax()]
    assert lens_table(places).row_count == 41
    first, second, _ = lens_figure(places, title="x").axes
    assert [len(axes.texts) for axes in (first, second)] == [96, 24]
    # Where nothing is asked no colour says that the model was wrong.
    hidden = first.images[0].get_array().mask
    assert hidden[:, 0].all()
    assert not hidden[:, 1:].any()


def test_dollar_signs_in_a_picture_of_the_lens_are_tokens_and_no_formulas(tmp_path):
    words = ["$\\bad$", "a$", "$b"]
    places = lens([torch.zeros(1, 3, 3)] * 2, words, [0, 1, None], words)
    figure = lens_figure(places, title="x")
    save(figure, tmp_path / "lens.png")
    [axes] = figure.axes[:1]
    assert not any(one.get_parse_math() for one in [*axes.texts, *axes.get_xticklabels()])


@pytest.mark.parametrize("at", [(0, 0), (4, 0), (1, 2), (1, -3), ("coda", 0), ("cached", 0)])
def test_what_a_model_does_not_have_is_refused_in_one_line(at):
    seen = inspect(build(Staircase(chunk_size=3, num_passes=3)), random_tokens(1, 5))
    known = r"1 \(0 to 1\), 2 \(0 to 1\), 3 \(0 to 1\)"
    with pytest.raises(ValueError, match=rf"are {known}, got layer .*; use one of them$"):
        seen.hidden(*at)
