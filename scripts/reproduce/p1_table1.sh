#!/usr/bin/env bash
# Table 1 of P1: powers of the scores in place of softmax, in a ViT-Tiny with 256 patches on Tiny-ImageNet. Three seeds.
#
# Data: Tiny-ImageNet, from the hub, or --data.path tiny-imagenet-200.zip.
# Cost: estimated, not run on a GPU. 3.3e9 operations per picture, 9.0e16 per run, half an hour on one H100 at 45 T/s, a
#   guess; 15 runs, 8 hours.
# Printed (top-1 accuracy, per cent: Tiny-ImageNet):
#   softmax  50.26
#   x3-16    50.5
#   x3-raw   45.3
#   x1-16    47.9
#   x1-raw   31.78
# Departs: P1 does not state optimiser, augmentation and number of epochs; those of the preset are ours. Text and caption
#   of P1's table say x^3 / 8, its heading x^3 / 16. 10,000 training pictures are held out; the published validation set
#   is the test set.
# Figure 1, the best scale by number of tokens: see docs/reproducing.md.
# Arguments are passed to the sweep (--preset quick, --seeds 0). RUNS=FOLDER sets the folder of runs.
set -euo pipefail
cd "$(dirname "$0")/../.."
seqarena=${SEQARENA:-.venv/bin/seqarena} RUNS=${RUNS:-runs}
set -- --runs "$RUNS" "$@"
"$seqarena" sweep lra tiny-imagenet --preset p1-tiny --attention softmax x3-16 x3-raw x1-16 x1-raw --seeds 0 1 2 "$@"
"$seqarena" leaderboard --runs "$RUNS"
