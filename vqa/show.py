"""Draws a generated scene for inspection: objects, boxes of each detector, questions and answers."""

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from seqarena.common.errors import WrongUseError, look_up
from seqarena.common.files import write_atomically
from seqarena.common.parser import Parser
from seqarena.vqa.data.scenes import SPLITS, Scenes, question_text
from seqarena.vqa.data.world import ATTRIBUTES, draw
from seqarena.vqa.presets import SCENES

NAMES = ("A sees shapes", "B sees colours", "C sees materials")


def parser() -> Parser:
    """Returns the parser of ``seqarena vqa show``."""
    made = Parser(prog="seqarena vqa show", description=__doc__)
    made.add_argument("--preset", default="toy", help="preset whose scenes are drawn (default: toy)")
    made.add_argument("--split", default="test", help="train, validation or test (default: test)")
    made.add_argument("--scene", type=int, default=0, help="number of the scene (default: 0)")
    made.add_argument("--out", type=Path, default=Path("scene.png"), help="file of the figure (default: scene.png)")
    return made


def picture(config: Scenes, split: int, scene: int) -> tuple[Figure, list[str]]:
    """Returns the figure, and each question with its most frequent answer and the number of annotators."""
    drawn = draw(config, split, scene + 1)
    shown = config.split(split, scene + 1)
    lines = []
    for question in range(len(shown) - len(config.kinds), len(shown)):
        most, said = shown.people[question].argmax(), shown.people[question]
        answer = config.answers[shown.options[question, most]]
        lines.append(f"{question_text(shown.words[question].tolist())} {answer} ({said[most]} of {said.sum()})")
    centres = shown.views.read(np.array([scene])).centres[0]
    figure = Figure(figsize=(16, 4.8 + 0.2 * len(lines)), layout="constrained")
    places = drawn.places[scene]
    axes = figure.subplots(1, 4)
    for thing, (across, down) in enumerate(places):
        name = " ".join(ATTRIBUTES[kind][drawn.attributes[kind][scene, thing]] for kind in (1, 2, 0))
        axes[0].text(across, down, name, ha="center", fontsize=8)
        axes[0].plot(across, down - 0.03, "k.")
    axes[0].set_title("what is there")
    for view, title in enumerate(NAMES):
        spot = axes[view + 1]
        missed = [thing for thing in range(config.objects) if not drawn.found[view][scene, thing]]
        spot.plot(*places[missed].T, "kx", label="missed")
        for box, thing in enumerate(drawn.boxes[view][scene]):
            across, down = centres[view, box].astype(float)
            kind = drawn.attributes[view][scene, thing] if thing < config.objects else None
            name = "nothing" if kind is None else ATTRIBUTES[view][kind]
            spot.plot(across, down, "s", color="#999999" if kind is None else "#0072B2", fillstyle="none", markersize=9)
            alike = [other for other in range(config.boxes) if drawn.boxes[view][scene, other] == thing]
            if box == alike[0]:
                spot.text(across + 0.03, down, name + f" ({len(alike)})" * (len(alike) > 1), fontsize=8)
        spot.set_title(f"{title}: {config.boxes} boxes, {len(missed)} things missed (x)")
    for each in axes:
        each.set(xlim=(-0.15, 1.15), ylim=(1.15, -0.15), xticks=[], yticks=[])
    figure.suptitle("\n".join(lines), fontsize=10)
    return figure, lines


def show(arguments: Sequence[str]) -> int:
    """Runs ``seqarena vqa show`` and returns its exit code."""
    options = parser().parse_args(arguments)
    configs = {each.run.preset: each.run.data for each in SCENES if isinstance(each.run.data, Scenes)}
    config = look_up(configs, options.preset, "preset", "vqa scenes")
    split = look_up({name: number for number, name in enumerate(SPLITS)}, options.split, "split")
    if not 0 <= options.scene < (config.scenes, config.held_out // 4, config.held_out)[split]:
        raise WrongUseError(f"--scene: expected the number of a scene in {options.split}, found {options.scene}")
    if options.out.suffix not in (".png", ".svg", ".pdf"):
        raise WrongUseError(f"--out {options.out}: expected a .png, .svg or .pdf")
    figure, lines = picture(config, split, options.scene)
    file = io.BytesIO()
    figure.savefig(file, format=options.out.suffix[1:], dpi=100)
    write_atomically(options.out, lambda target: target.write(file.getvalue()))
    print("\n".join(lines))
    print(options.out)
    return 0
