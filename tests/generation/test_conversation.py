"""A talk goes on from its state: the same as reading all of it again."""

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


def talk_with(model, **options):
    return Conversation(
        model,
        encode=lambda text: list(text.encode()),
        decode=bytes,
        separator="\n",
        sampling=GREEDY,
        **options,
    )


@pytest.mark.parametrize(
    "schedule", [Staircase(chunk_size=4, num_passes=2), TransformerXL(span=64)]
)
def test_turns_are_what_the_model_says_after_all_that_was_said(schedule):
    model = byte_model(schedule)
    talk = talk_with(model, max_tokens=6)
    heard, history = [], b""
    for words in ("hello", "why?", "and then"):
        heard.append("".join(talk.reply(words)))
        history += words.encode() + b"\n"
        made = [new.token for new in stream(model, list(history), max_tokens=6, sampling=GREEDY)]
        cut = made.index(10) + 1 if 10 in made else len(made)
        said = bytes(made[:cut])
        history += said if said.endswith(b"\n") else said + b"\n"
        assert heard[-1] == said.rstrip(b"\n").decode("utf-8", "replace")


def test_equal_words_may_get_different_answers():
    talk = Conversation(
        byte_model(TransformerXL(span=8)),
        encode=lambda text: list(text.encode()),
        decode=bytes,
        separator="\n",
        max_tokens=8,
    )
    answers = {"".join(talk.reply("hm")) for _ in range(4)}
    assert len(answers) > 1


def test_an_answer_that_nobody_hears_to_its_end_is_cut_off_there():
    model = byte_model(TransformerXL(span=64))
    talk = talk_with(model, max_tokens=6)
    reply = talk.reply("hello")
    next(reply)
    reply.close()
    made = [new.token for new in stream(model, list(b"hello\n"), max_tokens=6, sampling=GREEDY)]
    lengths = [count for count in range(1, 7) if talk.unread[0] == made[count - 1]]
    again = "".join(talk.reply("why?"))
    candidates = []
    for count in lengths:
        history = [*b"hello\n", *made[:count], *b"\nwhy?\n"]
        after = [new.token for new in stream(model, history, max_tokens=6, sampling=GREEDY)]
        cut = after.index(10) if 10 in after else len(after)
        candidates.append(bytes(after[:cut]).decode("utf-8", "replace"))
    assert again in candidates


def test_a_tokeniser_of_a_conversation_may_give_numbers_of_numpy():
    model = byte_model(TransformerXL(span=64))
    plain, other = talk_with(model, max_tokens=4), talk_with(model, max_tokens=numpy.int64(4))
    other.encode = lambda text: numpy.frombuffer(text.encode(), dtype=numpy.uint8)
    for words in ("hello", "why?"):
        assert list(other.reply(words)) == list(plain.reply(words))


def test_a_talk_ends_at_tokens_that_there_are_only():
    with pytest.raises(
        ValueError, match=r"a stop token is one that the model can make, 0 to \d+, got"
    ):
        talk_with(byte_model(TransformerXL(span=8)), stop_tokens=[9999])
