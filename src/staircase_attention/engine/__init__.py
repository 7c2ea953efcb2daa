"""Speed only: kernels, the fused core, the decoder, captured updates.

Everything here has a slow twin in the exact package, and computes the same function. Names are
imported when they are first used, Triton only where a kernel runs.

>>> from staircase_attention import CoreConfig, SequenceModel, Staircase, engine
>>> core = CoreConfig(width=16, num_layers=1, num_heads=2)
>>> schedule = Staircase(chunk_size=4, num_passes=3)
>>> model = engine.accelerate(SequenceModel(vocab_size=10, core=core, schedule=schedule))
"""

from staircase_attention.lazy import lazy_names

__all__, __getattr__, __dir__ = lazy_names(__name__, __file__)
