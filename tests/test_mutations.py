"""The planted faults of ``make mutations`` fit the code as it is now."""

from pathlib import Path

import pytest

from tests.mutations import MUTATIONS, ROOT, TESTS, Mutation, copy_tree


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda each: f"{each.file}-{each.before[:30]}")
def test_a_fault_can_be_planted(mutation: Mutation) -> None:
    text = (ROOT / "common" / "attention" / mutation.file).read_text()
    assert text.count(mutation.before) == 1
    compile(text.replace(mutation.before, mutation.after), mutation.file, "exec")


@pytest.mark.parametrize("path", TESTS)
def test_the_tests_that_notice_faults_are_there(path: str) -> None:
    assert (ROOT / path).exists()


def test_the_copy_has_every_source_file(tmp_path: Path) -> None:
    copy_tree(tmp_path / "tree")
    for folder in ("common", "seqarena", "tests"):
        sources = {path.relative_to(ROOT) for path in (ROOT / folder).rglob("*.py")}
        assert sources
        assert all((tmp_path / "tree" / path).exists() for path in sources)
