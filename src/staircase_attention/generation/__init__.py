"""Generation: samples from a model, streams tokens and text, saves streams in progress."""

from staircase_attention.generation.sampling import SamplingConfig as SamplingConfig
from staircase_attention.generation.saved_stream import load_stream as load_stream
from staircase_attention.generation.saved_stream import save_stream as save_stream
from staircase_attention.generation.stream import Conversation as Conversation
from staircase_attention.generation.stream import Finish as Finish
from staircase_attention.generation.stream import NewToken as NewToken
from staircase_attention.generation.stream import TokenStream as TokenStream
from staircase_attention.generation.stream import stream as stream
from staircase_attention.generation.stream import stream_text as stream_text
