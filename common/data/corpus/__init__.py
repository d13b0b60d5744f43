"""Bundled public-domain English text. Its origin: PROVENANCE.md beside this file."""

import hashlib
import lzma
from importlib import resources
from pathlib import Path

from seqarena.common.errors import BadDataError

VOCABULARY = Path(__file__).parent / "king_james.vocab.txt"
"""4,000 WordPiece tokens, trained once on the text (PROVENANCE.md)."""
SHA256 = "cfbde40d7e60ac6ab56f7a0a393405cf99b3db0cabcdda164ce962951a8409f9"


def king_james() -> str:
    """Returns the King James Bible: ``# Book`` and ``## chapter`` headings, one verse per line, 4.1 MB of ASCII.

    Raises:
        BadDataError: the installed file is damaged.
    """
    packed = resources.files(__package__).joinpath("king_james.txt.xz").read_bytes()
    try:
        text = lzma.decompress(packed)
    except lzma.LZMAError as error:
        raise BadDataError(f"common/data/corpus/king_james.txt.xz cannot be unpacked ({error}); reinstall") from error
    found = hashlib.sha256(text).hexdigest()
    if found != SHA256:
        raise BadDataError(f"common/data/corpus/king_james.txt.xz: sha256 is {found}, expected {SHA256}; reinstall")
    return text.decode("ascii")


def chapters() -> list[list[str]]:
    """Returns the verses of each chapter of each book, in order."""
    found: list[list[str]] = []
    for line in king_james().splitlines():
        if line.startswith("##"):
            found.append([])
        elif line and not line.startswith("#"):
            found[-1].append(line)
    return found
