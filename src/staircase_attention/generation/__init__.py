"""Makes tokens: samples from a model, streams them, stops them, saves a stream in progress."""

from staircase_attention.generation.config import SamplingConfig
from staircase_attention.generation.conversation import Conversation
from staircase_attention.generation.sampler import Choice, Sampler
from staircase_attention.generation.saved_stream import load_stream, load_text_stream, save_stream
from staircase_attention.generation.stop import StopStrings, TextTail
from staircase_attention.generation.stream import Finish, NewToken, TokenStream, stream
from staircase_attention.generation.text import NewText, TextStream, stream_text

__all__ = [
    "Choice",
    "Conversation",
    "Finish",
    "NewText",
    "NewToken",
    "Sampler",
    "SamplingConfig",
    "StopStrings",
    "TextStream",
    "TextTail",
    "TokenStream",
    "load_stream",
    "load_text_stream",
    "save_stream",
    "stream",
    "stream_text",
]
