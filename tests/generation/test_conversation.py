"""A dialogue continues from its state: the same as reading all of it again."""

import numpy
import pytest
import torch

from staircase_attention import CoreConfig, SequenceModel, Staircase, TransformerXL
from staircase_attention.generation import Conversation, SamplingConfig, stream

GREEDY = SamplingConfig(temperature=0.0)


def byte_model(schedule):
    torch.manual_seed(0)
    core = CoreConfig(width=16, num_layers=2, num_heads=2)
    return SequenceModel(vocab_size=256, core=core, schedule=schedule).double().eval()


def dialogue_with(model, *, sampling=GREEDY, encode=str.encode, **options):
    return Conversation(
        model, encode=encode, decode=bytes, separator="\n", sampling=sampling, **options
    )


def continued(model, history, num_tokens=6, sampling=GREEDY):
    return [t.token for t in stream(model, list(history), max_tokens=num_tokens, sampling=sampling)]


@pytest.mark.parametrize(
    "schedule", [Staircase(chunk_size=4, num_passes=2), TransformerXL(span=64)]
)
def test_a_reply_continues_the_whole_dialogue(schedule):
    model = byte_model(schedule)
    dialogue, history = dialogue_with(model, max_tokens=6), b""
    for words in ("hello", "why?", "and then"):
        reply = "".join(dialogue.reply(words))
        history += words.encode() + b"\n"
        made = bytes(continued(model, history)).partition(b"\n")[0]
        history += made + b"\n"
        assert reply == made.decode("utf-8", "replace")


@pytest.mark.parametrize("window", [4, 12, 256])
def test_the_repetition_penalty_applies_to_earlier_turns(window):
    model = byte_model(TransformerXL(span=64))
    sampling = SamplingConfig(temperature=0, repetition_penalty=1.5, repetition_window=window)
    dialogue, history = dialogue_with(model, max_tokens=6, sampling=sampling), b""
    for words in ("hello", "why?", "and then", ""):
        reply = "".join(dialogue.reply(words))
        history += words.encode() + b"\n"
        made = bytes(continued(model, history, sampling=sampling)).partition(b"\n")[0]
        history += made + b"\n"
        assert reply == made.decode("utf-8", "replace")


def test_equal_words_may_get_different_replies():
    dialogue = dialogue_with(byte_model(TransformerXL(span=8)), sampling=None, max_tokens=8)
    assert len({"".join(dialogue.reply("hm")) for _ in range(4)}) > 1


def test_a_reply_that_is_not_read_to_its_end_is_cut_off_there():
    model = byte_model(TransformerXL(span=64))
    dialogue = dialogue_with(model, max_tokens=6)
    reply = dialogue.reply("hello")
    next(reply)
    reply.close()
    made = continued(model, b"hello\n")
    again = "".join(dialogue.reply("why?"))
    expected = [
        bytes(continued(model, [*b"hello\n", *made[:count], *b"\nwhy?\n"])).partition(b"\n")[0]
        for count in range(1, 7)
    ]
    assert again in [text.decode("utf-8", "replace") for text in expected]


def test_a_tokeniser_may_give_numbers_of_numpy():
    model = byte_model(TransformerXL(span=64))
    dialogues = [
        dialogue_with(model, max_tokens=4, encode=encode)
        for encode in (str.encode, lambda text: numpy.frombuffer(text.encode(), dtype=numpy.uint8))
    ]
    for words in ("hello", "why?"):
        plain, other = (list(dialogue.reply(words)) for dialogue in dialogues)
        assert plain == other


def test_a_stop_token_must_be_one_that_the_model_can_make():
    with pytest.raises(ValueError, match="stop_token must be an integer from 0 to 255, got 9999"):
        next(dialogue_with(byte_model(TransformerXL(span=8)), stop_tokens=[9999]).reply("hm"))
