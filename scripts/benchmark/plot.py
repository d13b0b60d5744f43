"""Plots time and memory against length, on logarithmic axes."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

from seqarena.common.files import write_atomically
from seqarena.scripts.benchmark.cases import Measurement, Setting

LINES = {
    "reference": ":",
    "chunked": (0, (5, 1)),
    "blockwise": "-",
    "fused": "--",
    "features": "-.",
    "triton": (0, (3, 1, 1, 1)),
}


def plot(setting: Setting, found: Sequence[Measurement], path: Path) -> None:
    """Plots the measurements, with a colour per variant and order and a line style per implementation."""
    figure = Figure(figsize=(12, 5), layout="constrained")
    time_axes, memory_axes = figure.subplots(1, 2)
    labels = list(dict.fromkeys(each.case.label for each in found))
    colours = list(dict.fromkeys((each.case.variant, each.case.order) for each in found))
    for label in labels:
        line = [each for each in found if each.case.label == label]
        case, lengths = line[0].case, [each.case.length for each in line]
        style = {
            "color": mpl.colormaps["tab10" if len(colours) <= 10 else "tab20"](
                colours.index((case.variant, case.order))
            ),
            "linestyle": LINES[case.implementation],
            "marker": "o",
            "markersize": 3,
            "label": label,
        }
        time_axes.loglog(lengths, [1000 * each.seconds["both"] for each in line], **style)
        peaks = [each.peak_memory_bytes for each in line]
        if all(peaks):
            memory_axes.loglog(lengths, [number / 2**20 for number in peaks if number], **style)
    lengths = sorted({each.case.length for each in found})
    base = [next(each for each in found if each.case.length == length).baseline_seconds["none"] for length in lengths]
    time_axes.loglog(lengths, [1000 * each for each in base], color="black", linewidth=2, label="PyTorch fused softmax")
    title = f"batch {setting.batch}, {setting.heads} heads of {setting.head_dim}, {setting.precision}, {setting.device}"
    for axes, name in ((time_axes, "forward and backward, ms"), (memory_axes, "peak memory, MiB")):
        axes.set(xlabel="length", ylabel=name, title=title)
        axes.set_xscale("log", base=2)
        axes.set_xticks(lengths, [f"{length:,}" for length in lengths])
        axes.grid(alpha=0.3, which="both")
    figure.legend(*time_axes.get_legend_handles_labels(), loc="outside right center", fontsize="small")
    write_atomically(path, lambda file: figure.savefig(file, format="png", dpi=120))
