"""Reddit: Pushshift dumps as they come, rebuilt into threads, as paths that end in a comment.

The way of the data: `archives`, `lines` and `comments` read a dump; `cleaning` says what each
comment becomes; `records`, `runs` and `scatter` sort comments into buckets on disk; `threads` and
`outline` rebuild a bucket's threads and find the examples; `counting` counts them and `examples`
writes them; `preparation` puts these together, and `source` gives the documents.
"""

from staircase_attention.data.reddit.cleaning import Cleaning
from staircase_attention.data.reddit.episodes import EPISODE_LENGTH, Episode, episodes_of
from staircase_attention.data.reddit.filters import Filters
from staircase_attention.data.reddit.limits import Limits
from staircase_attention.data.reddit.options import Form, Gap, RedditOptions
from staircase_attention.data.reddit.report import (
    CommentCounts,
    LineCounts,
    Report,
    TextCounts,
)
from staircase_attention.data.reddit.source import RedditSource
from staircase_attention.data.reddit.splits import Fractions

__all__ = [
    "EPISODE_LENGTH",
    "Cleaning",
    "CommentCounts",
    "Episode",
    "Filters",
    "Form",
    "Fractions",
    "Gap",
    "Limits",
    "LineCounts",
    "RedditOptions",
    "RedditSource",
    "Report",
    "TextCounts",
    "episodes_of",
]
