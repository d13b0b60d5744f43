"""Charts of speed and memory by length, from files of ``seqarena benchmark attention`` and ``benchmark gpu``."""

from pathlib import Path
from typing import Any

from seqarena.common.files import read_strict_json
from seqarena.scripts.report.chart import REFERENCE, Chart, colour, label, rounded

DASHES = {
    "reference": "dot",
    "chunked": "longdashdot",
    "blockwise": "solid",
    "fused": "dash",
    "features": "dashdot",
    "triton": "longdash",
}


def speed(folder: Path, problems: list[str]) -> list[Chart]:
    """Returns two charts for each file of measurements in a folder; unreadable files are added to ``problems``."""
    made = []
    for path in sorted(folder.glob("*.json")):
        try:
            record = read_strict_json(path)
            if isinstance(record, dict):
                is_of_gpu = {"attention", "steps", "device"} <= record.keys()
                records = record["attention"] if is_of_gpu else [record]
                records = [each for each in records if "matmul_flops_per_second" in each]  # other benchmarks lack it
                made += [chart for each in records if each["measurements"] for chart in _charts(each)]
        except (OSError, ValueError, LookupError, TypeError, AttributeError, StopIteration) as error:
            problems.append(f"{path}: not measurements of attention ({type(error).__name__}: {error})")
    return made


def _charts(record: dict[str, Any]) -> list[Chart]:
    setting, found = record["setting"], record["measurements"]
    variants = list(dict.fromkeys((each["case"]["variant"], each["case"]["order"]) for each in found))
    lines: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for each in found:
        case = each["case"]
        lines.setdefault((case["variant"], case["order"], case["implementation"]), []).append(each)
    title = (
        f"batch {setting['batch']}, {setting['heads']} heads of {setting['head_dim']}, {setting['precision']}; "
        f"{record['device']}"
    )
    known = f"{record['commit'][:10]}{'' if record['clean'] else ', modified'}" if record["commit"] else "unknown"
    note = f"Commit {known}; PyTorch {record['torch']}."
    lengths = sorted({each["case"]["length"] for each in found})
    base = [next(each for each in found if each["case"]["length"] == length)["baseline_seconds"]["none"]
            for length in lengths]  # fmt: skip
    charts = []
    for what, unit in (("Time, forward and backward", "ms"), ("Peak memory", "MiB")):
        data = []
        for (variant, order, implementation), line in lines.items():
            heights = [
                1000 * each["seconds"]["both"] if unit == "ms" else (each["peak_memory_bytes"] or 0) / 2**20
                for each in line
            ]
            if all(heights):
                data.append(
                    _line(
                        f"{variant}{'' if order == 'none' else f', {order}'}, {implementation}",
                        [each["case"]["length"] for each in line],
                        heights,
                        {
                            "color": colour(variants.index((variant, order))),
                            "dash": DASHES.get(implementation, "solid"),
                        },
                    )
                )
        if unit == "ms":
            name = "PyTorch's fused softmax, no order, measured in the same rounds"
            data.append(_line(name, lengths, [1000 * each for each in base], {"color": REFERENCE, "width": 3}))
        layout = {
            "xaxis": {"type": "log", "title": {"text": "length"}, "tickvals": lengths},
            "yaxis": {"type": "log", "title": {"text": unit}},
        }
        if data:
            charts.append(Chart(title=f"{what}: {title}", data=data, layout=layout, height=380, note=note))
    return charts


def _line(name: str, lengths: list[int], heights: list[float], style: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "scatter", "mode": "lines+markers", "name": label(name), "x": lengths,
        "y": [rounded(each) for each in heights], "line": {"width": 1.6} | style, "marker": {"size": 5},
        "hovertemplate": "%{y:.4g} at %{x:,}",
    }  # fmt: skip
