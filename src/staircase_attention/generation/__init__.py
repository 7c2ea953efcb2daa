"""Generation: samples from a model, streams tokens and text, saves streams in progress."""

from staircase_attention.generation.conversation import Conversation
from staircase_attention.generation.sampling import SamplingConfig
from staircase_attention.generation.saved_stream import load_stream, save_stream
from staircase_attention.generation.stream import Finish, NewToken, TokenStream, stream, stream_text

__all__ = [
    "Conversation",
    "Finish",
    "NewToken",
    "SamplingConfig",
    "TokenStream",
    "load_stream",
    "save_stream",
    "stream",
    "stream_text",
]
