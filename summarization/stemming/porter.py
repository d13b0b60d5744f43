"""The last version of Porter's stemmer in Perl, which ROUGE-1.5.5 has."""

from nltk.stem.porter import PorterStemmer  # type: ignore[import-untyped]

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


class Stemmer(PorterStemmer):  # type: ignore[misc]
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
