"""The record of each task of headline generation."""

from dataclasses import replace
from types import MappingProxyType

from seqarena.common.runs.tasks import Published, Task

# Name, ROUGE-1, ROUGE-2, ROUGE-L, source. All on the 1,951 test pairs, trained on all training pairs.
FIGURES = (
    ("softmax", 38.15, 18.73, 35.23, "P2, random initialisation"),
    ("hnas", 38.47, 19.11, 35.71, "P2, random initialisation"),
    ("softmax", 38.90, 19.65, 36.24, "P2, encoder and decoder from BERT"),
    ("hnas", 39.06, 20.14, 36.51, "P2, encoder and decoder from BERT"),
    ("Transformer", 38.05, 18.95, 35.26, "Goodman et al. 2019, as P2 has it, random initialisation"),
    ("Transformer", 38.96, 19.55, 36.22, "Goodman et al. 2019, as P2 has it, encoder and decoder from BERT"),
    ("SEASS", 36.15, 17.54, 33.63, "as P2's Table 2 has it"),
    ("Base+E2Tcnn+sd", 37.04, 16.66, 34.93, "as P2's Table 2 has it"),
    ("BERTShare", 38.13, 19.81, 35.62, "Rothe et al. 2020, as the UniLM README has it"),
    ("UniLM", 38.90, 20.05, 36.00, "UniLM README"),
    ("MASS 208M", 38.93, 20.20, 36.20, "MASS README"),
    ("ERNIE-GEN base", 38.83, 20.04, 36.20, "ERNIE-GEN README"),
    ("PEGASUS mixed", 39.65, 20.47, 36.76, "PEGASUS README"),
    ("ProphetNet 160G", 39.62, 20.58, 36.77, "ProphetNet README, beam 5"),
)
ONE, TWO, LONGEST = (
    tuple(Published(name=name, value=scores[at] / 100, source=source) for name, *scores, source in FIGURES)
    for at in range(3)
)

GIGAWORD = Task(
    package="summarization",
    name="gigaword",
    title="headline of a news sentence (Gigaword); ROUGE-1 F1 with stemming; ROUGE-2 and ROUGE-L are reported too",
    version=2,  # version 1 used the stems of rouge-score
    metric="rouge1",
    secondary=("rouge2", "rougeL"),
    higher_is_better=True,
    splits="test: 1,951 pairs; checkpoint selection: 10,000 drawn from 189,651 validation pairs; training: 3,803,957",
    source="sumdata's or org_data's text files, or tables of document and summary (--data.path), or --data.hub",
    revision="Rush et al. 2015, the 1,951 test pairs of Chopra et al. 2016",
    licence="LDC user agreement; read from your copy, not distributed with seqarena",
    checksums=MappingProxyType({"quick": "f78ebbceb7e2b14b3106b199b482960cc6d8a2484d43e9bba6ae0b909a18d0a1"}),
    published=ONE,
    published_secondary=MappingProxyType({"rouge2": TWO, "rougeL": LONGEST}),
)
WIRE = replace(
    GIGAWORD,
    name="wire",
    title="headline of a generated news sentence in the style of Gigaword; same metrics as gigaword",
    version=1,  # both stemmers agree on all of its words, so it did not change with gigaword's version
    splits="20,000 generated training pairs, 1,000 validation, 2,000 test; no headline in two splits, numbers aside",
    source="generated (summarization/data/wire.py)",
    revision="seed 0",
    licence="ours",
    published=(),
    published_secondary=MappingProxyType({}),
)

TASKS = MappingProxyType({task.name: task for task in (GIGAWORD, WIRE)})
