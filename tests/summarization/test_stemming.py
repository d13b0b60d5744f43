"""Stems against those that ROUGE-1.5.5's Perl script gives."""

from pathlib import Path

import pytest

from seqarena.common.errors import BadDataError
from seqarena.summarization import stemming
from seqarena.summarization.rouge import rows
from seqarena.summarization.stemming import irregular_forms, stem

# Printed by the stemmer of ROUGE-1.5.5.pl. Its step 4 goes on after -ement, and it has no exceptions of NLTK's.
PERL = """firmament firmam  instruments instrum  instrumental instrum  agreement agreem  government govern
cement cement  movement movem  departments depart  environ environ  saying sai  they thei  died di  nation nation
destroyed destroi  assembly assembl  genealogies genealog  fruitful fruit  adoption adopt  extortioner extort
rational ration  yearly yearli  dependent depend  independently independ  adjustment adjust  vehement vehem
parliament parliam  percent percent"""
IRREGULAR = """grew grow  fell fall  held hold  said say  best well  better well  testes testes  happier happy
leaves leaf"""
MATCHES = {"said says": 0.0, "grew grows": 1.0, "happier happy": 0.0, "fell falls": 1.0}


@pytest.mark.parametrize("pair", f"{PERL}\n{IRREGULAR}".replace("\n", "  ").split("  "))
def test_stems_are_those_of_the_perl_script(pair: str) -> None:
    word, expected = pair.split()
    assert stem(word) == expected


def test_short_words_are_their_own_stems() -> None:
    """Though the table has *is* and *men*'s like: the script looks up words of more than three letters."""
    assert [stem(word) for word in ("is", "ran", "gps", "a", "s", "the")] == ["is", "ran", "gps", "a", "s", "the"]


def test_the_table_has_what_can_be_looked_up() -> None:
    forms = irregular_forms()
    assert len(forms) == 5_593
    assert all(len(word) > 3 and word.isalnum() and word.islower() for word in forms)


def test_an_irregular_form_matches_its_base_form_and_not_with_the_package() -> None:
    """A regular form matches where the base form is its own stem: the script does not stem the table's form again."""
    found = {pair: rows(pair.split()[:1], pair.split()[1:])["rouge1"][0] for pair in MATCHES}
    assert found == MATCHES
    assert rows(["shares fell"], ["shares fall"], "rouge-score")["rouge1"][0] == 0.5
    assert rows(["shares fell"], ["shares fall"])["rougeL"][0] == 1.0


def test_a_damaged_table_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "irregular.txt").write_bytes(stemming.FILE.read_bytes()[:-20])
    monkeypatch.setattr(stemming, "FILE", tmp_path / "irregular.txt")
    irregular_forms.cache_clear()
    with pytest.raises(BadDataError, match=r"expected 6f0d68735d34.*reinstall"):
        irregular_forms()
    irregular_forms.cache_clear()
