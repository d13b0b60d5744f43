"""Names of the task packages; a new package is added here."""

import importlib
import typing

from seqarena.common.errors import look_up

if typing.TYPE_CHECKING:
    import seqarena.common.runs.package

PACKAGES = ("lra", "summarization", "pretraining", "qa", "vqa")


def find_package(name: str) -> "seqarena.common.runs.package.Package":
    """Returns a package by name, imported on demand, because ``seqarena --help`` should not wait for torch.

    Raises:
        WrongUseError: no such package; suggests the nearest name.
    """
    look_up(dict.fromkeys(PACKAGES), name, "package")
    found: seqarena.common.runs.package.Package = importlib.import_module(f"seqarena.{name}.__main__").PACKAGE
    return found
