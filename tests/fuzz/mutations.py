"""Ways to spoil a file, each drawn from a seeded generator."""

import json
import os
import shutil
from pathlib import Path

OTHER_VALUES = (
    None, True, "", "x", [], {}, [[]], -1, 0, 1, 1.5, 10**5, 10**6, 4_000_000_000, 10**9, 10**18,
    1e308, float("nan"), float("inf"), "\ud800", "a" * 5_000, "../../../etc/hostname",
    "/etc/hostname", "/dev/zero", "weights.safetensors", "O", "F64", {"a": {"b": []}}, 2**63,
)  # fmt: skip
NESTED = 100_000


def mutate(path: Path, twin: Path, draw) -> str:
    """Spoil one file in one way, and name the way."""
    kinds = [*BYTES, *([] if draw.random() < 0.7 else PLACES), _swap]
    if path.suffix in (".json", ".jsonl"):
        kinds += [_change_json] * 12 + [_nest]
    if path.suffix == ".safetensors":
        kinds += [_change_header] * 8
    kind = draw.choice(kinds)
    if kind in (_swap,):
        kind(path, twin, draw)
    else:
        kind(path, draw)
    return kind.__name__.strip("_")


def _flip(path, draw):
    content = bytearray(path.read_bytes() or b"\0")
    for _ in range(draw.choice((1, 1, 2, 8))):
        content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    path.write_bytes(content)


def _truncate(path, draw):
    content = path.read_bytes()
    path.write_bytes(
        content[: draw.choice((0, len(content) // 2, draw.randrange(len(content) + 1)))]
    )


def _append(path, draw):
    content = path.read_bytes()
    more = draw.choice((b"\0", b"\n{}", content[:50], draw.randbytes(9)))
    path.write_bytes(content + more)


def _overwrite(path, draw):
    content = bytearray(path.read_bytes())
    start, length = draw.randrange(len(content) + 1), draw.choice((1, 8, 100))
    filler = draw.choice((b"\0", b"\xff", b"9", b"["))
    content[start : start + length] = filler * min(length, len(content) - start)
    path.write_bytes(content)


def _insert(path, draw):
    content = path.read_bytes()
    place = draw.randrange(len(content) + 1)
    path.write_bytes(content[:place] + draw.randbytes(draw.choice((1, 4))) + content[place:])


def _swap(path, twin, draw):
    """Another file of the folder, or the same file of another artefact of this format."""
    beside = sorted(one for one in path.parent.iterdir() if one.is_file())
    shutil.copyfile(draw.choice([twin, draw.choice(beside)]), f"{path}~")
    Path(f"{path}~").replace(path)


def _nest(path, draw):
    opening, closing = draw.choice((("[", "]"), ('{"a":', "}")))
    depth = draw.choice((40, 900, NESTED))
    path.write_text(opening * depth + "1" + closing * depth * draw.randrange(2))


def _fifo(path, draw):
    path.unlink()
    os.mkfifo(path)


def _device(path, draw):
    path.unlink()
    path.symlink_to(draw.choice(("/dev/zero", "/dev/urandom", "/dev/tty")))


def _folder(path, draw):
    path.unlink()
    path.mkdir()


def _remove(path, draw):
    path.unlink()


def _link(path, draw):
    """The same content, but elsewhere."""
    elsewhere = path.parent / f".{path.name}.elsewhere"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)


BYTES = (_flip, _flip, _flip, _truncate, _append, _overwrite, _insert)
PLACES = (_fifo, _device, _folder, _remove, _link)


def _change_json(path, draw):
    content = path.read_bytes()
    if path.suffix == ".json":
        path.write_text(json.dumps(change_plain(json.loads(content), draw)))
        return
    lines = content.splitlines() or [b"{}"]
    place = draw.randrange(len(lines))
    lines[place] = json.dumps(change_plain(json.loads(lines[place]), draw)).encode()
    path.write_bytes(b"\n".join([*lines, b""]))


def _change_header(path, draw):
    """Change the JSON header of a safetensors file, or the JSON text in its metadata."""
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    metadata = header.get("__metadata__", {})
    texts = [name for name, text in metadata.items() if text.startswith("{")]
    if texts and draw.random() < 0.8:
        name = draw.choice(texts)
        metadata[name] = json.dumps(change_plain(json.loads(metadata[name]), draw))
    else:
        header = change_plain(header, draw)
    text = json.dumps(header, separators=draw.choice([None, (",", ":"), (",", ":")])).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + content[8 + size :])


def change_plain(plain, draw):
    """Change one place of plain data: remove, replace, repeat or rename it."""
    places = list(_places(plain))
    holder, key = draw.choice(places) if places else (None, None)
    if holder is None:
        return draw.choice(OTHER_VALUES)
    value, kind = (
        holder[key],
        draw.choice(("remove", "replace", "replace", "replace", "repeat", "near")),
    )
    if kind == "remove":
        del holder[key]
    elif kind == "repeat" and isinstance(holder, list):
        holder.insert(key, value)
    elif kind == "repeat":
        holder[f"{key}_"] = holder.pop(key)
    elif kind == "near" and isinstance(value, (int, float)) and not isinstance(value, bool):
        holder[key] = value + draw.choice((-1, 1, 0.5, 1000))
    elif kind == "near" and isinstance(value, str):
        holder[key] = f"../{value}"
    else:
        holder[key] = draw.choice(OTHER_VALUES)
    return plain


def _places(plain):
    keys = (
        plain if isinstance(plain, dict) else range(len(plain)) if isinstance(plain, list) else ()
    )
    for key in list(keys):
        yield plain, key
        yield from _places(plain[key])
