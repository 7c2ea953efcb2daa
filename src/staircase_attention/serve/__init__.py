"""A server that remembers: the protocol of OpenAI, and sessions as values. An optional extra."""

from staircase_attention.checks import import_extra

for _name in ("prometheus_client", "starlette", "uvicorn"):
    import_extra(_name, needed_for="a server", extra="serve")

from staircase_attention.serve.app import Server, Service  # noqa: E402
from staircase_attention.serve.protocol import Limits  # noqa: E402

__all__ = ["Limits", "Server", "Service"]
