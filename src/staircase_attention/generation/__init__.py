"""Generation: samples from a model, streams tokens and text, saves streams in progress."""

from staircase_attention.generation.sampling import Choice, Sampler, SamplingConfig
from staircase_attention.generation.saved_stream import load_stream, load_text_stream, save_stream
from staircase_attention.generation.stream import (
    Finish,
    GenerationStatus,
    NewToken,
    TokenStream,
    stream,
)
from staircase_attention.generation.text import (
    Conversation,
    NewText,
    StopStrings,
    TextStream,
    TextTail,
    stream_text,
)

__all__ = [
    "Choice",
    "Conversation",
    "Finish",
    "GenerationStatus",
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
