"""The playground: a page that any web host can carry, and a server for this machine.

It runs models that come with the package in the browser, from the weights as they are packed.
"""

import posixpath
import shutil
import webbrowser
from collections.abc import Callable
from contextlib import suppress
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

from staircase_attention.checks import check_integer, input_error
from staircase_attention.files import check_can_hold

HERE = Path(__file__).parent
# Of the runs that come with the package; the page asks for some of them.
OF_MODELS = ("config.json", "weights.safetensors", "tokenizer.json")


def page_files() -> dict[str, Path]:
    """All files of the site, by their place in it."""
    runs = HERE.parent / "pretrained"
    found = {path.name: path for kind in ("html", "css", "js") for path in HERE.glob(f"*.{kind}")}
    models = (path for name in OF_MODELS for path in runs.rglob(name))
    return found | {f"models/{path.relative_to(runs).as_posix()}": path for path in models}


def write_page(folder: Path) -> int:
    """Copy the site to a folder; the number of its bytes."""
    check_can_hold(folder, "the folder of a page")
    for name, path in page_files().items():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    return sum(path.stat().st_size for path in page_files().values())


class PageHandler(SimpleHTTPRequestHandler):
    """Serves the files of the site and nothing else."""

    extensions_map = {**SimpleHTTPRequestHandler.extensions_map, ".js": "text/javascript"}  # noqa: RUF012

    def translate_path(self, path: str) -> str:
        """The file at this address; one that does not exist for all other addresses."""
        name = posixpath.normpath(unquote(urlsplit(path).path)).lstrip("/")
        return str(page_files().get(name or "index.html", HERE / "none"))

    def handle(self) -> None:
        """A visitor may leave in the middle of a file."""
        with suppress(ConnectionError):
            super().handle()

    def log_message(self, format: str, *arguments: object) -> None:
        """Say nothing: the terminal is the user's."""


def serve_page(port: int, *, opens_browser: bool, tell: Callable[[str], None]) -> None:
    """Serve the site on this machine only, until Ctrl-C."""
    check_integer("--port", port, minimum=0, maximum=65_535, example=8000)
    try:
        server = ThreadingHTTPServer(("127.0.0.1", port), PageHandler)
    except OSError as error:
        raise input_error("--port must be free", f"{port} ({error})", "use --port 0") from error
    with server:
        address = f"http://127.0.0.1:{server.server_port}/"
        tell(f"the playground is at {address} (Ctrl-C ends it)")
        if opens_browser:
            webbrowser.open(address)
        server.serve_forever()
