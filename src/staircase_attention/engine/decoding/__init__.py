"""Decodes one token at a time: the model's own chunk order, as a captured graph."""

from staircase_attention.engine.decoding.decoder import Decoder
from staircase_attention.engine.decoding.weights import Weights

__all__ = ["Decoder", "Weights"]
