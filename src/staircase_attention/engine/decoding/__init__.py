"""One token at a time, fast: a captured twin of a model's own chunk order."""

from staircase_attention.engine.decoding.decoder import Decoder
from staircase_attention.engine.decoding.weights import Weights

__all__ = ["Decoder", "Weights"]
