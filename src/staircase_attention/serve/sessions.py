"""Sessions: states under names. They are values: to continue one leaves it as it is.

On disk each is a saved stream (`generation.save_stream`): one whole file with a checksum, and with
a fingerprint of the weights that it belongs to.
"""

import logging
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from weakref import WeakSet

from staircase_attention.checks import input_error
from staircase_attention.files import locked, make_folder
from staircase_attention.generation import TokenStream, load_stream, save_stream
from staircase_attention.models import State
from staircase_attention.serve.protocol import Job, RefusedError, checked_name
from staircase_attention.training import LanguageModel

SUFFIX = ".safetensors"
LOG = logging.getLogger(__name__)


class Sessions:
    """All sessions, in memory; those of a folder are loaded at the start and saved at the end."""

    def __init__(self, language: LanguageModel, *, most: int, folder: Path | None) -> None:
        self.most, self.folder, self.jobs = most, folder, WeakSet[Job]()
        self.by_name: dict[str, TokenStream] = {}
        """Streams of one row, as they were when an answer ended."""
        self._unsaved: set[str] = set()
        if folder is None:
            return
        make_folder(folder)
        self._lock = ExitStack()
        self._lock.enter_context(locked(folder))
        for path in sorted(folder.glob(f"*{SUFFIX}")):
            # One that cannot be used is reported, and left where it is.
            try:
                tokens = load_stream(path, language.model, decode=language.decode)
                if len(tokens.rows) != 1:
                    raise input_error("a session must have one row", len(tokens.rows), "save one")
                self.by_name[checked_name(path.name.removesuffix(SUFFIX))] = tokens
            except (ValueError, OSError) as error:
                LOG.warning("a session was not loaded: %s", error)

    def save(self) -> None:
        """Write what the folder does not have yet, and leave the folder."""
        if self.folder is None:
            return
        for name in self._unsaved:
            try:
                save_stream(self.by_name[name], self.folder / f"{name}{SUFFIX}")
            # A disk may be full; the others may be smaller.
            except (ValueError, OSError) as error:
                LOG.error("session %s was not saved: %s", name, error)
        self._lock.close()

    def find(self, name: str) -> TokenStream:
        """The session of a name."""
        if name not in self.by_name:
            rule = "session must be one of those in GET /v1/sessions"
            raise RefusedError(404, rule, repr(name), "check its name")
        return self.by_name[name]

    def put(self, name: str, tokens: TokenStream) -> None:
        """Keep a stream under a name, in place of what had it before."""
        self.by_name[name] = tokens
        self._unsaved.add(name)

    def delete(self, name: str) -> None:
        """Forget a session."""
        del self.by_name[name]
        self._unsaved.discard(name)
        if self.folder is not None:
            (self.folder / f"{name}{SUFFIX}").unlink(missing_ok=True)

    def check_room(self, *names: str) -> None:
        """Refuse more sessions than there may be, with those that present jobs will make."""
        known = {*self.by_name}.union(*(job.kept for job in self.jobs))
        if (number := len({*names} - known)) and len(known) + number > self.most:
            rule = f"the number of sessions must be at most {self.most}"
            raise RefusedError(409, rule, f"{number} more", "delete one, or reuse its name")

    def described(self, name: str) -> dict[str, Any]:
        """A session as plain data."""
        state = self.find(name).stepper.state
        # The latest token has not been read. An LSTM does not count.
        length = state.lengths[0] + 1 if isinstance(state, State) else None
        return {"id": name, "object": "session", "num_tokens": length}
