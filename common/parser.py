"""The parser of every command, in a file that imports nothing slow."""

import argparse
from typing import Any, NoReturn

from seqarena.common.errors import WrongUseError


class Parser(argparse.ArgumentParser):
    """Argument parser that reports an error in one line and accepts no abbreviated options."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter, **settings)

    def error(self, message: str) -> NoReturn:
        """Raises a ``WrongUseError``."""
        raise WrongUseError(f"{message}; see {self.prog} --help")
