"""Sessions: states under names. They are values: to continue one leaves it as it is.

On disk each is a saved stream (`generation.save_stream`): one whole file with a checksum, and with
a fingerprint of the weights that it belongs to.
"""

import logging
import re
import time
import uuid
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from staircase_attention.checks import InputError, input_error
from staircase_attention.files import locked, make_folder
from staircase_attention.generation import TokenStream, load_stream, save_stream
from staircase_attention.generation.stepper import Model
from staircase_attention.generation.text import Decode

NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}")
SUFFIX = ".safetensors"
LOG = logging.getLogger(__name__)


class UnknownSessionError(InputError):
    """A session that is not there."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Session:
    """A stream of one row, as it was when an answer ended."""

    tokens: TokenStream
    created: int
    is_on_disk: bool = False


class Sessions:
    """All sessions, in memory; those of a folder are loaded at the start and saved at the end."""

    def __init__(self, *, most: int, folder: Path | None = None) -> None:
        self.most, self.folder = most, folder
        self.by_name: dict[str, Session] = {}
        self._lock = ExitStack()

    def load(self, model: Model, decode: Decode) -> None:
        """Read the sessions of the folder; one that cannot be used is reported and left there."""
        if self.folder is None:
            return
        make_folder(self.folder)
        self._lock.enter_context(locked(self.folder))
        for path in sorted(self.folder.glob(f"*{SUFFIX}")):
            try:
                tokens = load_stream(path, model, decode=decode)
                if len(tokens.rows) != 1:
                    raise input_error("a session has one row", len(tokens.rows), "save one row")
                created = int(path.stat().st_mtime)
                name = checked_name(path.name.removesuffix(SUFFIX))
                self.by_name[name] = Session(tokens=tokens, created=created, is_on_disk=True)
            except (ValueError, OSError) as error:
                LOG.warning("a session is left out: %s", error)

    def save(self) -> int:
        """Write what the folder does not have yet; gives the number of sessions in it."""
        if self.folder is None:
            return 0
        for name, session in self.by_name.items():
            if not session.is_on_disk:
                save_stream(session.tokens, self._path(name))
                self.by_name[name] = replace(session, is_on_disk=True)
        self._lock.close()
        return len(self.by_name)

    def find(self, name: object) -> Session:
        """The session of a name."""
        if not isinstance(name, str) or name not in self.by_name:
            rule = "session must be one of those in GET /v1/sessions"
            raise UnknownSessionError(str(input_error(rule, repr(name), "check its name")))
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
            self._path(name).unlink(missing_ok=True)

    def check_room(self, name: str | None) -> None:
        """Refuse one more session than there may be."""
        if name not in self.by_name and len(self.by_name) >= self.most:
            raise input_error(
                f"there may be {self.most} sessions", "one more", "delete one, or reuse its name"
            )

    def _path(self, name: str) -> Path:
        assert self.folder is not None
        return self.folder / f"{name}{SUFFIX}"


def describe(name: str, session: Session) -> dict[str, Any]:
    """A session as plain data."""
    state = session.tokens.stepper.state
    # The latest token has not been read.
    length = [one + 1 for one in getattr(state, "lengths", ())]
    return {
        "id": name,
        "object": "session",
        "created": session.created,
        "num_tokens": length[0] if length else None,
        "num_bytes": getattr(state, "num_bytes", None),
    }


def checked_name(name: object) -> str:
    """A name of a session, which is also one of a file."""
    if not isinstance(name, str) or not NAME.fullmatch(name):
        rule = "a session's name must be up to 64 letters, digits, dots, hyphens and underscores"
        raise input_error(rule, repr(name), "use for example draft-1")
    return name
