"""Draws a generated scene for inspection: objects, boxes of each detector, questions and answers."""

import io
from collections.abc import Sequence
from pathlib import Path

from seqarena.common.errors import WrongUseError, look_up
from seqarena.common.files import write_atomically
from seqarena.common.parser import Parser
from seqarena.vqa.data.scenes import SPLITS, Scenes
from seqarena.vqa.presets import SCENES


def parser() -> Parser:
    """Returns the parser of ``seqarena vqa show``."""
    made = Parser(prog="seqarena vqa show", description=__doc__)
    made.add_argument("--preset", default="toy", help="preset whose scenes are drawn (default: toy)")
    made.add_argument("--split", default="test", help="train, validation or test (default: test)")
    made.add_argument("--scene", type=int, default=0, help="number of the scene (default: 0)")
    made.add_argument("--out", type=Path, default=Path("scene.png"), help="file of the figure (default: scene.png)")
    return made


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
    from seqarena.vqa.scene_figure import picture  # noqa: PLC0415  # matplotlib takes half a second to import

    figure, lines = picture(config, split, options.scene)
    file = io.BytesIO()
    figure.savefig(file, format=options.out.suffix[1:], dpi=100)
    write_atomically(options.out, lambda target: target.write(file.getvalue()))
    print("\n".join(lines))
    print(options.out)
    return 0
