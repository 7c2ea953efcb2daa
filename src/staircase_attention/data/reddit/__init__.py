"""Reddit: Pushshift dumps rebuilt into threads, and written as paths that end in a comment.

The data goes through `comments` (parse and clean a line), `source` (comments on disk, each thread
whole in one file) and `threads` (rebuild, select, write).
"""

from staircase_attention.data.compression import import_extra

import_extra("pyarrow", needed_for="Reddit")

from staircase_attention.data.reddit.comments import Cleaning  # noqa: E402
from staircase_attention.data.reddit.source import RedditReport, RedditSource  # noqa: E402
from staircase_attention.data.reddit.threads import RedditOptions  # noqa: E402

__all__ = ["Cleaning", "RedditOptions", "RedditReport", "RedditSource"]
