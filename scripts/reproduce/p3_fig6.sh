#!/usr/bin/env bash
# Figure 6 and Table 1 of P3: a vision transformer of 80 layers with 64 colour patches on CIFAR-10, under post-norm,
# pre-norm and de-escalated post-norm. Three seeds.
#
# Data: CIFAR-10, from the hub, or --data.path cifar-10-python.tar.gz.
# Cost: estimated, not run on a GPU. 1.0e10 operations per picture, 6.7e16 per run, 25 minutes on one H100 at 45 T/s, a
#   guess; nine runs, 4 hours.
# Printed: curves of training and test loss, means of at least three trials; we know of no numbers and no claim beyond
#   them. Expected here: no number. seqarena curves draws the losses of the runs.
# Departs: 45,000 training pictures, since 5,000 are held out; the curve of the validation set in place of the test
#   set's. The classifier reads a class token, because the mean over tokens is 0 after a final de-escalation. We do not
#   know P3's dropout (here 0), initial weights and pooling, and the activation of its ViT (here GELU; ReLU by default in
#   its Algorithm 1). Pre-norm has a final LayerNorm. As in P3: sizes, patches, AutoAugment, 150 epochs of batches of
#   128, AdamW with weight decay 0.1, rate 1e-4 (post-norm 5e-5, so its rows form a separate table), lowered to a fifth
#   at 70 % and 90 %, de-escalation with tau 1 at each block's end.
# Arguments are passed to every sweep; --preset quick keeps quick's sizes and rate, on drawn digits. RUNS=FOLDER sets
# the folder of runs.
# The same claim on words, from 4 to 48 layers, in three hours on one core: seqarena figures depth depth-layers
set -euo pipefail
cd "$(dirname "$0")/../.."
seqarena=${SEQARENA:-.venv/bin/seqarena} RUNS=${RUNS:-runs}
set -- --runs "$RUNS" "$@"
"$seqarena" sweep lra cifar10-patches --preset p3-vit80 --norm deescalated --model.norm.where block_output \
    --seeds 0 1 2 "$@"
"$seqarena" sweep lra cifar10-patches --preset p3-vit80 --norm pre --seeds 0 1 2 "$@"
"$seqarena" sweep lra cifar10-patches --preset p3-vit80-post --norm post --seeds 0 1 2 "$@"
"$seqarena" leaderboard --runs "$RUNS"
