"""Tables of the documents, printed from the results that are committed: ``make tables`` writes them anew.

A table stands between a comment with the command that prints it and one that ends it.
"""

import contextlib
import io
import re
import shlex
from pathlib import Path

from seqarena.scripts import leaderboard

ROOT = Path(__file__).parent.parent
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
TABLE = re.compile(r"(<!-- seqarena leaderboard (.*?) -->\n).*?(<!-- end of the table -->)", re.DOTALL)


def printed(arguments: str) -> str:
    """Returns what ``seqarena leaderboard`` prints, with folders named from the project's root."""
    with contextlib.chdir(ROOT), contextlib.redirect_stdout(io.StringIO()) as shown:
        leaderboard.run([*shlex.split(arguments), "--format", "markdown"])
    return shown.getvalue()


def with_tables(text: str) -> str:
    """Returns a document with its tables as the results say."""
    return TABLE.sub(lambda found: f"{found[1]}{printed(found[2])}{found[3]}", text)


if __name__ == "__main__":
    for document in DOCUMENTS:
        document.write_text(with_tables(document.read_text()))
