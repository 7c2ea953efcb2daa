"""All that is installed with the package, directly or not, has a licence that allows its use."""

import re
from importlib import metadata

from packaging.requirements import Requirement

ALLOWED = re.compile(
    r"(MIT|MIT-CMU|MIT License|(0|[23]-Clause )?BSD(-[23]-Clause)?( [23]-Clause)?( License)?|ISC"
    r"|ISC License( \(ISCL\))?|Apache( Software| Version)?([- ]2\.0)?( License)?"
    r"|LLVM-exception|PSF-2\.0|Python Software Foundation License|CNRI-Python|BSL-1\.0|Zlib"
    r"|CC0-1\.0|MPL-2\.0|Mozilla Public License 2\.0 \(MPL 2\.0\))"
)
# PyTorch's libraries for GPUs may be used and passed on, but are not free software.
OF_NVIDIA = ("nvidia-", "cuda-")


def dependencies(name, extras):
    """The distributions that are installed for a package, by name."""
    found, waiting = {}, [(name, extra) for extra in ("", *extras)]
    seen = set(waiting)
    while waiting:
        name, extra = waiting.pop()
        try:
            found[name] = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            # Not for this system, or an extra that is left out.
            continue
        for line in found[name].requires or []:
            need = Requirement(line)
            if need.marker is None or need.marker.evaluate({"extra": extra}):
                new = {(need.name.lower(), other) for other in ("", *need.extras)} - seen
                seen |= new
                waiting += new
    return found


def licences(distribution):
    """Its licence by the field that is most exact."""
    fields = distribution.metadata
    if expression := fields.get("License-Expression"):
        return re.split(r" (?:AND|OR|WITH) |[()]", expression)
    names = [line for line in fields.get_all("Classifier") or [] if line.startswith("License")]
    names = [line.rpartition(" :: ")[2] for line in names]
    return names or re.split(r" (?:AND|OR) ", (fields.get("License") or "none").splitlines()[0])


def test_every_dependency_has_an_allowed_licence():
    found = dependencies("staircase-attention", ("dev", "corpora", "huggingface"))
    assert {"torch", "numpy", "typer", "tokenizers", "hypothesis"} <= set(found)
    others = {
        name: licences(distribution)
        for name, distribution in found.items()
        if not name.startswith(OF_NVIDIA)
        and not all(ALLOWED.fullmatch(one.strip()) for one in licences(distribution))
    }
    assert not others
