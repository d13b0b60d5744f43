"""The figure of a generated scene: its objects, the boxes of each detector, questions and answers."""

import numpy as np
from matplotlib.figure import Figure

from seqarena.vqa.data.scenes import Scenes, question_text
from seqarena.vqa.data.world import ATTRIBUTES, draw

NAMES = ("A sees shapes", "B sees colours", "C sees materials")


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
