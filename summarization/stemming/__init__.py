"""Stems of ROUGE-1.5.5 with ``-m``: WordNet's irregular forms, then the script's version of Porter's stemmer."""

import functools
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from seqarena.common.errors import BadDataError

FILE = Path(__file__).parent / "irregular.txt"
"""5,593 irregular words with their base forms; for their origin see PROVENANCE.md."""
SHA256 = "6f0d68735d349bc1e557536fd1dea6aa59dffd0cbfac1ae35838f3012b950e43"


@functools.lru_cache(maxsize=100_000)
def stem(word: str) -> str:
    """Returns the stem that the Perl script compares for a lower-case word; up to three letters stay unchanged.

    As in the script, the base form of an irregular word is not stemmed again: *happier* becomes ``happy``, but
    *happy* becomes ``happi``.
    """
    if len(word) <= 3:
        return word
    found: str = irregular_forms().get(word) or _stemmer().stem(word)
    return found


@functools.cache
def _stemmer() -> Any:
    from seqarena.summarization.stemming.porter import Stemmer  # noqa: PLC0415  # nltk takes a second to import

    return Stemmer()


@functools.cache
def irregular_forms() -> Mapping[str, str]:
    """Returns the base form of each irregular word.

    Raises:
        BadDataError: the installed file is damaged.
    """
    content = FILE.read_bytes()
    found = hashlib.sha256(content).hexdigest()
    if found != SHA256:
        raise BadDataError(f"summarization/stemming/{FILE.name}: sha256 is {found}, expected {SHA256}; reinstall")
    return dict(line.split() for line in content.decode("ascii").splitlines())
