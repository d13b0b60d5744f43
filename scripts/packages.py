"""The task packages that there are: a new one is a word here."""

import importlib
import typing

from seqarena.common.errors import look_up

if typing.TYPE_CHECKING:
    import seqarena.common.runs.package

PACKAGES = ("lra", "summarization", "pretraining", "qa", "vqa")


def find_package(name: str) -> "seqarena.common.runs.package.Package":
    """Returns a package by its name, imported only now: ``seqarena --help`` must not wait for torch.

    Raises:
        WrongUseError: no such package; says the nearest names.
    """
    look_up(dict.fromkeys(PACKAGES), name, "package")
    found: seqarena.common.runs.package.Package = importlib.import_module(f"seqarena.{name}.__main__").PACKAGE
    return found
