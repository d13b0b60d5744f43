"""Stems of ROUGE-1.5.5 with ``-m``: WordNet's irregular forms, then the script's version of Porter's stemmer."""

import functools
import hashlib
from collections.abc import Mapping
from pathlib import Path

from nltk.stem.porter import PorterStemmer  # type: ignore[import-untyped]

from seqarena.common.errors import BadDataError

FILE = Path(__file__).parent / "irregular.txt"
"""5,593 irregular words with their base forms; for their origin see PROVENANCE.md."""
SHA256 = "6f0d68735d349bc1e557536fd1dea6aa59dffd0cbfac1ae35838f3012b950e43"
BEFORE = (
    "al",
    "ance",
    "ence",
    "er",
    "ic",
    "able",
    "ible",
    "ant",
    "ement",
    "ou",
    "ism",
    "ate",
    "iti",
    "ous",
    "ive",
    "ize",
)
"""Endings that the Perl script's step 4 tries first; it then tries -ment, then -ent, each on the previous result."""


@functools.lru_cache(maxsize=100_000)
def stem(word: str) -> str:
    """Returns the stem that the Perl script compares for a lower-case word; up to three letters stay unchanged.

    As in the script, the base form of an irregular word is not stemmed again: *happier* becomes ``happy``, but
    *happy* becomes ``happi``.
    """
    if len(word) <= 3:
        return word
    found: str = irregular_forms().get(word) or STEMMER.stem(word)
    return found


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


class _Stemmer(PorterStemmer):  # type: ignore[misc]
    """Porter's stemmer as released in Perl, with the change of 2004 to step 4 that ROUGE-1.5.5 has."""

    def __init__(self) -> None:
        super().__init__(self.MARTIN_EXTENSIONS)

    def _step4(self, word: str) -> str:
        def long(rest: str) -> bool:
            return bool(self._measure(rest) > 1)

        for endings in (BEFORE, ("ment",)):
            word = self._apply_rule_list(word, [(ending, "", long) for ending in endings])
        rules = [("ent", "", long), ("ion", "", lambda rest: long(rest) and rest[-1] in "st")]
        found: str = self._apply_rule_list(word, rules)
        return found


STEMMER = _Stemmer()
