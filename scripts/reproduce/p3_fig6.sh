#!/usr/bin/env bash
# Figure 6 of P3: 80 layers on CIFAR-10 under post-norm, pre-norm and de-escalated post-norm. Three seeds. P3
# trains a vision transformer on 64 colour patches; this uses lra image instead, with a token per pixel: 1,024 in grey.
#
# Data: CIFAR-10, from the hub, or --data.path cifar-10-python.tar.gz.
# Cost: estimated, not run on a GPU. 3.4e11 operations per picture, 2.3e18 per run, 14 hours on one H100 at 45 T/s, a
#   guess; nine runs, 127 hours. (With patches: 25 minutes per run.)
# Printed: curves of training and test loss, means of at least three trials; we know of no numbers and no claim beyond
#   them. Expected here: no number.
# Departs: pixels instead of patches, so 16 times the tokens (patches: --preset p3-vit80 of lra cifar10-patches, see
#   docs/reproducing.md); no AutoAugment; a cosine instead of P3's steps at 70 % and 90 %; 45,000 training pictures. As
#   in P3: 150 epochs of batches of 128, AdamW with weight decay 0.1, rate 1e-4 (post-norm 5e-5, so its rows form a
#   separate table), de-escalation at each block's end. We do not know P3's dropout (here 0.1), initial weights and
#   pooling, and the activation of its ViT (here GELU; ReLU by default in its Algorithm 1). The classifier reads a class
#   token, because the mean over tokens is 0 after a final de-escalation. Pre-norm has a final LayerNorm.
# Arguments are passed to every sweep; --preset quick keeps quick's sizes and rate, on drawn digits. RUNS=FOLDER sets
# the folder of runs.
# The same claim on words, from 4 to 48 layers, in three hours on one core: seqarena figures depth depth-layers
set -euo pipefail
cd "$(dirname "$0")/../.."
seqarena=${SEQARENA:-.venv/bin/seqarena} RUNS=${RUNS:-runs}
set -- --runs "$RUNS" "$@"
RECIPE=(--model.pooling cls --model.max-length 1025) PEAK=() LOWER=()
if [[ " $* " != *" --preset quick "* ]]; then
    RECIPE+=(--model.layers 80 --model.dim 192 --model.heads 8 --model.ffn-dim 384 --optim.weight-decay 0.1
        --optim.eps 1e-8 --optim.schedule.shape cosine --optim.schedule.warmup 0 --train.steps 52734
        --train.batch-size 128 --train.micro-batch-size 32 --train.eval-every 3516)
    PEAK=(--optim.lr 1e-4) LOWER=(--optim.lr 5e-5)
fi
"$seqarena" sweep lra image --preset xiong2021 --norm deescalated --model.norm.where block_output \
    --seeds 0 1 2 "${RECIPE[@]}" "${PEAK[@]}" "$@"
"$seqarena" sweep lra image --preset xiong2021 --norm pre --seeds 0 1 2 "${RECIPE[@]}" "${PEAK[@]}" "$@"
"$seqarena" sweep lra image --preset xiong2021 --norm post --seeds 0 1 2 "${RECIPE[@]}" "${LOWER[@]}" "$@"
"$seqarena" leaderboard --runs "$RUNS"
