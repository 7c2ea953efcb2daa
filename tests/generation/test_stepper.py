"""Streams are the same with a decoder and with the model itself."""

import pytest
import torch
from small_streams import made

from staircase_attention import (
    CachedStaircase,
    CoreConfig,
    Ladder,
    ParallelLoop,
    SequenceModel,
    Staircase,
)
from staircase_attention.engine import Decoder
from staircase_attention.generation import SamplingConfig, load_stream, save_stream, stepper, stream

pytest.importorskip("triton")


@pytest.fixture
def model():
    torch.manual_seed(0)
    return SequenceModel(
        vocab_size=9,
        core=CoreConfig(width=32, num_layers=1, num_heads=2),
        schedule=Staircase(chunk_size=2, num_passes=2),
    )


@pytest.fixture
def with_decoders(monkeypatch):
    monkeypatch.setattr(stepper, "is_worthwhile", lambda model: True)


def test_a_round_that_fails_leaves_a_decoder_where_it_was(model, with_decoders):
    tokens = stream(model, [1, 2], max_tokens=None)
    next(tokens)
    before = tokens.state.lengths

    def fail(_):
        raise RuntimeError("no text")

    tokens.decode = fail
    with pytest.raises(RuntimeError, match="no text"):
        next(tokens)
    tokens.decode = None
    assert tokens.state.lengths == before
    other = stream(model, [1, 2], max_tokens=None)
    next(other)
    assert next(tokens).token == next(other).token


def test_a_decoder_is_kept_until_less_than_half_of_its_rows_are_in_use(model, with_decoders):
    prompts = [[1, 2], [3, 4], [5, 6], [7, 8], [2, 1]]
    tokens = stream(model, prompts, max_tokens=None)

    def step_with(ended):
        for row in ended:
            tokens.finished[row] = "stop_token"
        tokens.next_round()
        return tokens.stepper._decoder

    first = step_with([])
    assert step_with([1]) is first
    assert len(tokens.rows) == tokens.state.batch_size == 4
    assert step_with([4]) is first
    second = step_with([0])
    assert second is not first
    assert second.batch_size == 2
    assert tokens.state.lengths == (5, 5)


def test_a_batch_whose_rows_end_one_by_one_gives_the_tokens_of_the_model(
    model, monkeypatch, tmp_path, with_decoders
):
    """Also where it is saved while some of a decoder's rows are out of use."""
    prompts = [[1, 2], [3, 4], [5, 6], [7, 8]]

    def made():
        tokens, found = stream(model, prompts, max_tokens=7), []
        for turn in range(7):
            found += [(new.row, new.token) for new in tokens.next_round()]
            if turn in (1, 3, 4):
                tokens.finished[tokens.rows[turn % len(tokens.rows)]] = "stop_token"
            if turn == 2:
                save_stream(tokens, tmp_path / "stream")
                tokens = load_stream(tmp_path / "stream", model)
        return found, tokens.state.lengths

    by_decoder = made()
    monkeypatch.setattr(stepper, "is_worthwhile", lambda model: False)
    assert by_decoder == made()


def test_changed_weights_make_a_new_decoder(model, with_decoders):
    tokens = stream(model, [1, 2], max_tokens=None)
    next(tokens)
    first = tokens.stepper._decoder
    assert isinstance(first, Decoder)
    with torch.no_grad():
        model.output.bias.add_(1.0)
    next(tokens)
    assert tokens.stepper._decoder is not first


@pytest.mark.parametrize(
    "schedule",
    [
        Ladder(num_passes=3, span=5),
        Staircase(chunk_size=4, num_passes=3),
        ParallelLoop(num_passes=3, span=5),
    ],
    ids=lambda schedule: schedule.name,
)
def test_decoders_draft_and_verify_the_tokens_of_the_model(schedule, monkeypatch):
    torch.manual_seed(0)
    core = CoreConfig(width=32, num_layers=1, num_heads=2)
    model = SequenceModel(vocab_size=9, core=core, schedule=schedule)
    options = {"max_tokens": 7, "sampling": SamplingConfig(temperature=0)}
    prompts = [[1, 2], [3, 4]]
    expected = made(stream(model, prompts, **options))
    monkeypatch.setattr(stepper, "is_worthwhile", lambda model: True)
    drafted = stream(model, prompts, **options).speculate(1, 3)
    assert made(drafted) == expected
    num_drafted, num_accepted = drafted.speculation.num_drafted, drafted.speculation.num_accepted
    # A decoder of lagged passes takes one token at a time, and so has nothing to draft.
    assert num_accepted < num_drafted or (schedule.name == "parallel-loop" and not num_drafted)
    assert drafted.stepper._decoder


@pytest.mark.parametrize(
    "schedule",
    [
        Ladder(num_passes=2, span=4),
        ParallelLoop(num_passes=2, span=4),
        CachedStaircase(chunk_size=2, num_window_chunks=3, num_passes=2),
    ],
    ids=lambda schedule: schedule.name,
)
def test_rows_that_come_to_a_decoder_take_free_places_and_get_what_the_model_gives(
    schedule, with_decoders
):
    """Also one with a longer past than all others, for which there is a new decoder."""
    torch.manual_seed(0)
    core = CoreConfig(width=32, num_layers=1, num_heads=2)
    model = SequenceModel(vocab_size=9, core=core, schedule=schedule).eval()
    batch = torch.randint(9, (6, 50))
    read = [0] * 6
    alone = model(batch)[0]

    def prompt(row, length):
        read[row] = length
        return model(batch[row : row + 1, :length])[1]

    with torch.inference_mode():
        steps = stepper.Stepper(model, prompt(0, 13), grows=True)
        together, decoders = [0], []
        # The rows that come, with the number of tokens behind them, and the places that stay.
        for coming, staying in (
            ([(1, 7), (2, 1)], [0, 1, 2]),
            ([(3, 13)], [0, 3, 1]),
            ([(4, 2)], [1, 3, 0, 2]),
            ([(5, 37)], [0, 4]),
        ):
            # Each is at the place of a period at which the others are.
            place, period = read[together[0]], schedule.period
            steps.add([prompt(row, length + (place - length) % period) for row, length in coming])
            together += [row for row, _ in coming]
            for _ in range(len(coming)):
                tokens = torch.stack([batch[row, read[row]] for row in together])
                logits = steps.ahead(tokens[:, None])[:, 0]
                expected = torch.stack([alone[row, read[row]] for row in together])
                torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-5)
                steps.settle(1)
                for row in together:
                    read[row] += 1
            decoders.append(steps._decoder)
            steps.keep(staying)
            together = [together[place] for place in staying]
            assert steps.state.lengths == tuple(read[row] for row in together)
    # Three rows have four places, of which each that is left is taken again.
    assert decoders[0] is decoders[1] is decoders[2]
    assert [decoder.batch_size for decoder in decoders] == [4, 4, 4, 8]
