#!/usr/bin/env bash
# Figure 6 of P3: 80 layers on CIFAR-10 under post-norm, pre-norm and de-escalated post-norm. Three seeds. P3's is a
# vision transformer of 64 colour patches; the suite has none, and lra image stands in: 1,024 grey pixels, a token each.
#
# Data: CIFAR-10, from the hub, or --data.path cifar-10-python.tar.gz.
# Cost: an estimate, for none of it ran on a GPU: 3.4e11 operations a picture, 2.3e18 a run, 14 hours on one H100 at
#   45 T/s, a guess; nine runs, 127 hours. (Of patches: a run 25 minutes.)
# Printed: curves, of which no number is at hand. As P3 tells them: with de-escalation post-norm learns at depth 80 too,
#   about as pre-norm does. Expected here: that order, and no figure.
# Departs: pixels for patches, so 16 times the tokens; no AutoAugment; a cosine for P3's steps down at 70 % and 90 %;
#   GELU and dropout 0.1 of xiong2021; 45,000 pictures train. As P3: 150 epochs of batches of 128, AdamW with weight
#   decay 0.1, rate 1e-4 (post-norm 5e-5, so its rows are a table of their own), the mean taken at each block's end.
#   The classifier reads a token of its own, for the mean over tokens is 0 behind a last de-escalation.
# Arguments go to every sweep; --preset quick keeps quick's sizes and rate, on drawn digits. RUNS=FOLDER is where the runs are.
# The same claim on words, from 4 to 48 layers, in an hour and a half on one core: seqarena figures depth depth-layers
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
