#!/usr/bin/env bash
# Table 1 of P2: views of three detectors fused by attention, on VQA v2. Three seeds. hnas is from P2's Figure 3.
#
# Data: the official files of train2014 and val2014, and 100 boxes from each of three detectors (docs/vqa.md):
#   --data.path vqa --data.regions regions/R101 regions/R152 regions/X152 --data.glove glove.6B.300d.txt
#   seqarena prepare vqa features creates a folder of regions; no public set has three detectors. 151 GB.
# Cost: estimated, not run on a GPU. 4.8e9 operations per question by PyTorch's FlopCounterMode, 5e16 per run; 20
#   minutes on one H100 at 45 T/s, a guess; reading features, 2.6 TB per run, may take longer. 15 runs, 4 hours.
#   Measured: 26 questions per second on 2 CPU cores, five days per run.
# Printed (accuracy, per cent: test-dev, test-std):
#   softmax, primary  68.33  (100 boxes of one detector)
#   softmax, boxes    68.79  69.22  (3 x 100 in a row)
#   softmax           69.14  69.50
#   dnas              69.70  70.01
#   Pythia            68.31  (100 boxes, as P2 quotes it; the figure of Pythia v0.3, trained on train2014 and val2014)
# Departs: any three detectors instead of P2's, which are not public; training on train2014 only, test on val2014. For
#   comparison: Pythia v0.3, trained on train2014 alone, has 66.7 on test-dev. We do not know on what P2 trained, which
#   detector is primary, nor P2's heads, residual sum, LayerNorm, fc7 and initial u.
# Arguments are passed to every sweep (--preset quick, --seeds 0; --train.micro-batch-size 64 if 512 do not fit).
# RUNS=FOLDER sets the folder of runs.
set -euo pipefail
cd "$(dirname "$0")/../.."
seqarena=${SEQARENA:-.venv/bin/seqarena} RUNS=${RUNS:-runs}
set -- --runs "$RUNS" "$@"
"$seqarena" sweep vqa vqa2 --preset pythia-3x100 --attention softmax dnas hnas --seeds 0 1 2 "$@"
"$seqarena" sweep vqa vqa2 --preset pythia-3x100 --model.fusion.kind primary --seeds 0 1 2 "$@"
"$seqarena" sweep vqa vqa2 --preset pythia-3x100 --model.fusion.kind boxes --seeds 0 1 2 "$@"
"$seqarena" leaderboard --runs "$RUNS"
