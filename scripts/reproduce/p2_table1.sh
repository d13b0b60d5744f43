#!/usr/bin/env bash
# Table 1 of P2: the views of three detectors joined by attention, on VQA v2. Three seeds; hnas is its Figure 3's.
#
# Data: the official files of train2014 and val2014, and the 100 boxes that each of three detectors finds (docs/vqa.md):
#   --data.path vqa --data.regions regions/R101 regions/R152 regions/X152 --data.glove glove.6B.300d.txt
#   seqarena prepare vqa features makes a folder of regions; no public set has three detectors. 151 GB on disk.
# Cost: an estimate, for none of it ran on a GPU: 4.8e9 operations a question as PyTorch's FlopCounterMode counts them,
#   5e16 a run, 20 minutes on one H100 at 45 T/s, a guess; reading features, 2.6 TB a run, may well take longer.
#   15 runs, 4 hours. Measured: 18 questions a second on 2 CPU cores, a week a run.
# Printed (accuracy, per cent: test-dev, test-std):
#   softmax, primary  68.33  (100 boxes of one detector)
#   softmax, boxes    68.79  69.22  (3 x 100 in a row)
#   softmax           69.14  69.50
#   dnas              69.70  70.01
# Departs: any three detectors for P2's, which are not public; train2014 alone trains and val2014 tests (Pythia's own,
#   trained so, has 66.7); heads, residual sum, LayerNorm, fc7 and u's start, which P2 does not state.
# Arguments go to every sweep (--preset quick, --seeds 0; --train.micro-batch-size 64 where 512 do not fit);
# RUNS=FOLDER is where the runs are.
set -euo pipefail
cd "$(dirname "$0")/../.."
seqarena=${SEQARENA:-.venv/bin/seqarena} RUNS=${RUNS:-runs}
set -- --runs "$RUNS" "$@"
"$seqarena" sweep vqa vqa2 --preset pythia-3x100 --attention softmax dnas hnas --seeds 0 1 2 "$@"
"$seqarena" sweep vqa vqa2 --preset pythia-3x100 --model.fusion.kind primary --seeds 0 1 2 "$@"
"$seqarena" sweep vqa vqa2 --preset pythia-3x100 --model.fusion.kind boxes --seeds 0 1 2 "$@"
"$seqarena" leaderboard --runs "$RUNS"
