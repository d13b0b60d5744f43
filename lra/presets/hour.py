"""Presets between quick and the papers'. Five variants with three seeds take about an hour on two CPU cores."""

from seqarena.common.runs.run import Preset
from seqarena.lra.data.listops import ListOps
from seqarena.lra.data.text import Text
from seqarena.lra.presets.quick import short
from seqarena.lra.run import Run


def _preset(run: Run, data_name: str, source: str, expected: str) -> Preset[Run]:
    cost = "two to four minutes on one CPU core with softmax"
    return Preset(
        run=run, source=f"ours: {source}", expected=expected, cost=cost, comparable=False, data_name=data_name
    )  # fmt: skip


EXPRESSIONS = ListOps(longer_than=19, shorter_than=101, max_depth=6)
LISTOPS = _preset(
    short("listops", "hour", EXPRESSIONS, positions=128, lr=1e-3, steps=2_500, eval_every=500),
    "expressions of 20 to 100 symbols",
    "expressions of 20 to 100 symbols, 6 levels",
    "softmax 42 %, dnas, hnas, x3-14 40 to 41 %, x1-14 38 % (3 seeds); root operator 33 %, one level 58 %",
)
TEXT = _preset(
    short("text", "hour", Text(length=256), positions=256, lr=1e-3, steps=1_500, batch_size=32, eval_every=300),
    "the first 256 bytes of a review",
    "the first 256 bytes of the real reviews",
    "softmax, dnas, hnas 58 %, x3-14, x1-14 54 % (3 seeds); bag of bytes 58 %, of byte pairs 65 %",
)

HOUR = (LISTOPS, TEXT)
