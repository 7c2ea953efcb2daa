r"""Writes the text of `pretrained:novels-and-talk`, split into train, valid and test.

    python benchmarks/text_model.py novels/ topical_chat.jsonl text/
    staircase prepare text text/novels text/talk --weights 1,2 --valid-file text/valid \
        --test-file text/test --tokeniser bpe-1024 --output corpora/novels-and-talk

Novels lose runs of blank lines, because three line breaks end a turn of a dialogue. One novel and
2% of the dialogues are for validation, and as much for the test. Novels of 1929 and later, which
are not in the public domain everywhere, are left out.
"""

import re
import sys
from pathlib import Path

HELD_OUT = {"Trollope_Warden_1855.txt": "valid", "Stevenson_Treasure_1883.txt": "test"}
PUBLIC_DOMAIN = 1929
BREAKS = re.compile(r"\n\s*\n\s*\n")


def main(novels: Path, dialogues: Path, output: Path) -> None:
    """Write the four folders; valid and test have a novel and dialogues."""
    for name in ("novels", "talk", "valid", "test"):
        (output / name).mkdir(parents=True)
    for novel in sorted(novels.glob("*.txt")):
        if int(novel.stem.rsplit("_", 1)[1]) < PUBLIC_DOMAIN:
            text = BREAKS.sub("\n\n", novel.read_text())
            (output / HELD_OUT.get(novel.name, "novels") / novel.name).write_text(text)
    parts: dict[str, list[str]] = {"talk": [], "valid": [], "test": []}
    for number, line in enumerate(dialogues.read_text().splitlines(keepends=True)):
        parts[{0: "valid", 1: "test"}.get(number % 50, "talk")].append(line)
    for split, lines in parts.items():
        (output / split / "dialogues.jsonl").write_text("".join(lines))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
