"""Tables of the documents, and the page of the tier small, from the results that are committed.

``make tables`` writes them anew.

A table stands between a comment with the command that prints it, or with a name in ``RECORDS``, and one that ends it.
"""

import contextlib
import io
import json
import re
import shlex
import tempfile
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from seqarena.common.runs.config import to_json
from seqarena.scripts import leaderboard, report
from seqarena.scripts.benchmark import gpu, show
from seqarena.scripts.figures import p2_recall
from seqarena.scripts.figures.depth import ARMS, FASTER, FULL, RIVALS, VERSION, Arm
from seqarena.scripts.figures.trainings import end_of

ROOT = Path(__file__).parent.parent
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
PAGE = ROOT / "docs" / "index.html"
TABLE = re.compile(
    r"(<!-- seqarena (leaderboard|benchmark (?:gpu|show)) (.*?)-->\n).*?(<!-- end of the table -->)", re.DOTALL
)
COMMANDS = {"leaderboard": leaderboard.run, "benchmark gpu": gpu.run, "benchmark show": show.run}


def printed(command: str, arguments: str) -> str:
    """Returns what a command of ``COMMANDS`` prints, with folders named from the project's root."""
    with contextlib.chdir(ROOT), contextlib.redirect_stdout(io.StringIO()) as shown:
        COMMANDS[command]([*shlex.split(arguments), "--format", "markdown"])
    return shown.getvalue()


def depth_courses() -> dict[tuple[str, int], list[dict[str, Any]]]:
    """Returns (arm as JSON, layers) -> what was recorded of its trainings by ``seqarena figures depth``, by seed."""
    found = defaultdict(list)
    for path in sorted((ROOT / "docs" / "figures" / "trainings").glob(f"depth-{VERSION}-*.json")):
        record = json.loads(path.read_bytes())
        trial = record["trial"]
        if (trial["steps"], trial["dim"]) == (FULL.steps, FULL.dim):
            found[json.dumps(trial["arm"]), trial["depth"]].append((trial["seed"], record["course"]))
    return {key: [course for _, course in sorted(each, key=lambda pair: pair[0])] for key, each in found.items()}


def layers_table() -> str:
    """Returns similarity and gradient by layer of the deepest models of the first seed, at the end."""
    deepest, courses = FULL.depths[-1], depth_courses()
    shown = (1, deepest // 2, deepest)
    lines = [
        f"| norm | token similarity after layers {', '.join(map(str, shown))} | gradient norm of layers 1, {deepest} | "
        f"layer {deepest} / layer 1 |",
        "|---|---|---|---:|",
    ]
    for arm in (*ARMS, *FASTER, *RIVALS):
        course = courses[json.dumps(to_json(arm)), deepest][0]
        similarity, gradient = course["similarity"][-1], course["gradient"][-1]
        ratio = gradient[-1] / gradient[0]
        cells = [
            arm.label,
            ", ".join(f"{similarity[each - 1]:.2f}" for each in shown),
            f"{gradient[0]:.1g}, {gradient[-1]:.1g}",
            f"{ratio:,.0f}" if ratio > 100 else f"{ratio:.2g}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def depth_table(arms: Sequence[Arm]) -> str:
    """Returns the mean losses of some arms of ``seqarena figures depth``, from the records in docs/figures."""
    found = {key: [end_of(course["losses"]) for course in each] for key, each in depth_courses().items()}
    lines = [f"| layers | {' | '.join(arm.label for arm in arms)} |", f"|---:|{'---:|' * len(arms)}"]
    for depth, seeds in zip(FULL.depths, FULL.seeds, strict=True):
        ends = [found.get((json.dumps(to_json(arm)), depth), []) for arm in arms]
        cells = [f"{fmean(each):.2f}{'' if len(each) == seeds else f' ({len(each)})'}" if each else "" for each in ends]
        lines.append(f"| {depth} | {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def recall_table() -> str:
    """Returns the scores of ``seqarena figures p2-recall``, from the records in docs/figures: mean (sd) over seeds."""
    found = defaultdict(list)
    for path in sorted((ROOT / "docs" / "figures" / "trainings").glob(f"recall-{p2_recall.VERSION}-*.json")):
        record = json.loads(path.read_bytes())
        for name, score in record["course"].items():
            if name != "class" and score is not None:
                found[record["trial"]["recall"], record["trial"]["attention"]["class"], name].append(100 * score)
    arms, groups = {"softmax": "Softmax", "dnas": "DoublyNormalized"}, p2_recall.GROUPS
    headings = [f"{title}: {arm}" for title in groups for arm in arms]
    lines = [f"| fraction that A finds | {' | '.join(headings)} |", f"|---:|{'---:|' * len(headings)}"]
    for recall in sorted({recall for recall, *_ in found}):
        cells = [found.get((recall, kind, name), []) for name in groups.values() for kind in arms.values()]
        shown = [f"{fmean(each):.1f} ({stdev(each):.1f})" if each else "" for each in cells]
        lines.append(f"| {recall} | {' | '.join(shown)} |")
    return "\n".join([*lines, ""])


def mass_table() -> str:
    """Returns statistics of the key masses in the results of vqa scenes, means over seeds."""
    variants = ("softmax", "dnas", "hnas")
    found: dict[str, list[dict[str, float]]] = {name: [] for name in variants}
    for path in sorted((ROOT / "results" / "quick" / "vqa" / "scenes").rglob("result.json")):
        result = json.loads(path.read_bytes())
        if result["row"] in found:
            found[result["row"]].append(result["metrics"])
    lines = [f"| | {' | '.join(variants)} |", "|---|---:|---:|---:|"]
    for title, metric, style in (
        ("smallest mass", "key_mass_least", ".2g"),
        ("keys with a mass below 0.1", "keys_below_a_tenth", ".1%"),
        ("effective fraction of keys", "keys_used", ".0%"),
        ("mean mass of keys on objects that A missed", "key_mass_missed", ".2f"),
        ("mean mass of keys on objects that A found", "key_mass_seen", ".2f"),
    ):
        cells = [format(fmean(each[metric] for each in found[name]), style).replace("%", " %") for name in variants]
        lines.append(f"| {title} | {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def small_table() -> str:
    """Returns the number of runs of each task of the tier small, and the hours of those that are committed."""
    lines = ["| task | tested runs | runs that chose a rate | core hours of the tested runs |", "|---|---:|---:|---:|"]
    for folder in sorted((ROOT / "results" / "small").iterdir()):
        seconds = [json.loads(each.read_bytes())["training_seconds"] for each in folder.rglob("result.json")]
        tunings = [json.loads(each.read_bytes()) for each in folder.rglob("tunings/*.json")]
        trials = sum(len(scores) for each in tunings for choice in each["choices"] for _, scores in choice["scores"])
        lines.append(f"| `{folder.name}` | {len(seconds)} | {trials} | {sum(seconds) / 3600:.1f} |")
    return "\n".join([*lines, ""])


RECORDS: dict[str, Callable[[], str]] = {
    "runs of the tier small": small_table,
    "trainings of p2-recall": recall_table,
    "key masses": mass_table,
    "depth trainings: main": partial(depth_table, ARMS),
    "depth trainings: faster": partial(depth_table, FASTER),
    "depth trainings: rivals": partial(depth_table, RIVALS),
    "depth trainings: layers": layers_table,
}
"""Comment before a table -> the function that writes it."""
RECORD = re.compile(rf"(<!-- ({'|'.join(RECORDS)}) -->\n).*?(<!-- end of the table -->)", re.DOTALL)


def with_tables(text: str) -> str:
    """Returns a document with its tables as the results say."""
    text = TABLE.sub(lambda found: f"{found[1]}{printed(found[2], found[3])}{found[4]}", text)
    return RECORD.sub(lambda found: f"{found[1]}{RECORDS[found[2]]()}{found[3]}", text)


def page(out: Path) -> str:
    """Writes the report of the tier small to a file. Returns it without the time and the commit of this call.

    Of the measurements of speed, those of ``seqarena benchmark gpu`` that are committed are part of it.
    """
    with contextlib.chdir(ROOT), contextlib.redirect_stdout(io.StringIO()):
        report.run(["--runs", "results/small", "--benchmarks", "docs/benchmarks", "--out", str(out)])
    return without_moment(out.read_text())


def without_moment(text: str) -> str:
    """Returns a report without the time and the commit of the command that wrote it."""
    return re.sub(r"; created [^<.]*\.", "", text, count=1)


if __name__ == "__main__":
    for document in DOCUMENTS:
        document.write_text(with_tables(document.read_text()))
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / PAGE.name
        if page(made) != without_moment(PAGE.read_text()):
            PAGE.write_text(made.read_text())
