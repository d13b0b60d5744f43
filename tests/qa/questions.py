"""Questions of a few words, as the official JSON has them."""

import json
from pathlib import Path
from typing import Any

from seqarena.qa.data.squad import Questions, from_json

PARAGRAPH = "  The Normans lived in France. They gave their name to Normandy; Japanese cooks did not."


def squad(
    answers: list[list[str]], *, version: str = "1.1", context: str = PARAGRAPH, **changes: Any
) -> dict[str, Any]:
    """A file of one paragraph with a question for each list of gold answers, numbered q0, q1, ..."""
    qas = [
        {"id": f"q{number}", "question": f"  What about {number}?",
         "answers": [{"text": text, "answer_start": context.find(text)} for text in golds],
         **({} if version == "1.1" else {"is_impossible": not golds}), **changes}
        for number, golds in enumerate(answers)
    ]  # fmt: skip
    paragraphs = [{"context": context, "qas": qas}]
    return {"version": version, "data": [{"title": "Normans", "paragraphs": paragraphs}]}


def asked(answers: list[list[str]], *, version: str = "1.1") -> Questions:
    """The same, read."""
    return from_json(squad(answers, version=version), version, "here", "score")  # type: ignore[arg-type]


def written(path: Path, values: Any) -> Path:
    """A JSON file."""
    path.write_text(json.dumps(values))
    return path
