"""Dumps for the tests, and a slow and simple reconstruction of what is in them."""

import json
import random

from small_corpora import compressed


def comment(identity, parent=None, link="x1", body=None, created=None, **fields):
    """The fields of a comment; without a parent it answers the post."""
    return {
        "id": identity,
        "parent_id": f"t3_{link}" if parent is None else f"t1_{parent}",
        "link_id": f"t3_{link}",
        "author": "someone",
        "body": f"body of {identity}" if body is None else body,
        "created_utc": 1_000 + int(identity, 36) if created is None else created,
        **fields,
    }


def as_lines(comments):
    return b"".join(json.dumps(fields).encode() + b"\n" for fields in comments)


def write_dump(path, content, compression="plain"):
    """Write comments, or bytes, as a dump."""
    content = content if isinstance(content, bytes) else as_lines(content)
    path.write_bytes(compressed(content, compression))
    return path


def random_comments(seed, num_comments, num_threads=7):
    """Threads with gaps, cycles, duplicates, bots and missing parents, in random order."""
    draw = random.Random(seed)
    comments, threads = [], {}
    for number in range(1, num_comments + 1):
        link = f"x{draw.randrange(num_threads)}"
        earlier = threads.setdefault(link, [])
        parent = draw.choice([*earlier[-6:], None, f"gone{number}"] if earlier else [None])
        body = draw.choice([None] * 12 + ["[deleted]", "[removed]", "", " \n"])
        author = draw.choice(["ann", "bob", "[deleted]", "AutoModerator", "carol", "dave"])
        created = draw.randrange(1_000, 1_000 + 2 * num_comments)
        comments.append(comment(f"c{number}", parent, link, body, created, author=author))
        earlier.append(f"c{number}")
    for fields in draw.sample(comments, num_comments // 25):
        # A comment that answers itself or any other, be it one that answers it.
        fields["parent_id"] = "t1_" + draw.choice([fields, *comments])["id"]
    comments += [dict(fields) for fields in draw.sample(comments, num_comments // 20)]
    draw.shuffle(comments)
    return comments


def naive_paths(comments):
    """{(thread, id): [text, ...]} for each example: one comment at a time, step by step."""
    first = {}
    for fields in comments:
        first.setdefault((fields["link_id"], fields["id"]), fields)
    return {key: path for key, fields in first.items() if (path := _climb(first, fields))}


def is_alive(fields):
    body = fields["body"].strip()
    return body not in ("", "[deleted]", "[removed]") and fields["author"] != "AutoModerator"


def _climb(first, fields):
    path, seen = [], set()
    while fields is not None and is_alive(fields) and fields["id"] not in seen:
        seen.add(fields["id"])
        path.insert(0, fields["body"])
        if fields["parent_id"].startswith("t3_"):
            return path
        fields = first.get((fields["link_id"], fields["parent_id"].removeprefix("t1_")))
    # A gap or a cycle.
    return None
