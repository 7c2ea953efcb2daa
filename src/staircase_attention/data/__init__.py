"""Text as corpora: files of any size are prepared once, and tokens read from mapped memory.

A `DocumentSource` gives `Document`s. A mixture of sources says how often each comes, and in which
split. A `Tokeniser` turns documents into tokens, and `prepare` stores them as a `Corpus`: shards
with a manifest. `TokenLanes` gives the training batches of a split, `evaluation_batches` the rest.
"""

from staircase_attention.lazy import lazy_names

__all__, __getattr__, __dir__ = lazy_names(__name__, __file__)
