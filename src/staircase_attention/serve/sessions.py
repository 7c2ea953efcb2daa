"""Sessions: states under names. They are values: to continue one leaves it as it is.

On disk each is a saved stream (`generation.save_stream`): one whole file with a checksum, and with
a fingerprint of the weights that it belongs to.
"""

import logging
import time
import uuid
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from staircase_attention.checks import input_error
from staircase_attention.files import locked, make_folder
from staircase_attention.generation import TokenStream, load_stream, save_stream
from staircase_attention.generation.stepper import Model
from staircase_attention.generation.text import Decode
from staircase_attention.serve.protocol import RefusedError, checked_name

SUFFIX = ".safetensors"
LOG = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Session:
    """A stream of one row, as it was when an answer ended."""

    tokens: TokenStream
    created: int
    is_on_disk: bool = False

    def described(self, name: str) -> dict[str, Any]:
        """The session as plain data."""
        state = self.tokens.stepper.state
        # The latest token has not been read.
        length = [one + 1 for one in getattr(state, "lengths", ())]
        return {
            "id": name,
            "object": "session",
            "created": self.created,
            "num_tokens": length[0] if length else None,
            "num_bytes": getattr(state, "num_bytes", None),
        }


class Sessions:
    """All sessions, in memory; those of a folder are loaded at the start and saved at the end."""

    def __init__(
        self, model: Model, decode: Decode, *, most: int, folder: Path | None = None
    ) -> None:
        self.most, self.folder = most, folder
        self.by_name: dict[str, Session] = {}
        if folder is None:
            return
        make_folder(folder)
        self._lock = ExitStack()
        self._lock.enter_context(locked(folder))
        for path in sorted(folder.glob(f"*{SUFFIX}")):
            # One that cannot be used is reported, and left where it is.
            try:
                name, created = checked_name(path.name.removesuffix(SUFFIX)), path.stat().st_mtime
                tokens = load_stream(path, model, decode=decode)
                if len(tokens.rows) != 1:
                    raise input_error("a session has one row", len(tokens.rows), "save one row")
            except (ValueError, OSError) as error:
                LOG.warning("a session is left out: %s", error)
                continue
            self.by_name[name] = Session(tokens=tokens, created=int(created), is_on_disk=True)

    def save(self) -> None:
        """Write what the folder does not have yet, and leave the folder."""
        if self.folder is None:
            return
        for name, session in self.by_name.items():
            try:
                if not session.is_on_disk:
                    save_stream(session.tokens, self.folder / f"{name}{SUFFIX}")
            # A disk may be full; the others may be smaller.
            except (ValueError, OSError) as error:
                LOG.error("session %s is lost: %s", name, error)
        self._lock.close()

    def find(self, name: object) -> Session:
        """The session of a name."""
        if not isinstance(name, str) or name not in self.by_name:
            rule = "session must be one of those in GET /v1/sessions"
            raise RefusedError(404, rule, repr(name), "check its name")
        return self.by_name[name]

    def put(self, name: str | None, tokens: TokenStream) -> str:
        """Keep a stream under a name, in place of what had it before, or under a new one."""
        name = name or f"session-{uuid.uuid4().hex}"
        self.by_name[name] = Session(tokens=tokens, created=int(time.time()))
        return name

    def delete(self, name: str) -> None:
        """Forget a session."""
        self.by_name.pop(name, None)
        if self.folder is not None:
            (self.folder / f"{name}{SUFFIX}").unlink(missing_ok=True)

    def check_room(self, name: str | None) -> None:
        """Refuse one more session than there may be."""
        if name not in self.by_name and len(self.by_name) >= self.most:
            rule = f"there may be {self.most} sessions"
            raise RefusedError(409, rule, "one more", "delete one, or reuse its name")
