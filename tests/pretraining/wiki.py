"""WikiText small enough to read, as its files are published."""

from pathlib import Path

TRAIN = " \n = Game = \n \n the game <unk> the Game\nthe end\n"


def folder(path: Path, train: str = TRAIN, valid: str = "the end\n", test: str = "\n<unk> game\n") -> Path:
    """Writes the three files and returns their folder."""
    path.mkdir(parents=True, exist_ok=True)
    for name, text in (("train", train), ("valid", valid), ("test", test)):
        (path / f"wiki.{name}.tokens").write_text(text)
    return path


def rhymes(path: Path, lines: int = 40) -> Path:
    """Writes text with a rule that can be learned: words follow each other in a ring, from a place a line."""
    ring = ["one", "two", "three", "four", "five", "six", "seven", "<unk>"]
    said = [" ".join((ring + ring)[start % 8 : start % 8 + 7]) for start in range(lines)]
    return folder(path, *("\n".join(said[first:]) + "\n" for first in (0, 1, 2)))
