#!/usr/bin/env bash
# Table 4 of P1: polynomial activations on Long Range Arena, three seeds each. Days on a GPU, months on a CPU.
# Text and Image come from the hub, or from what `seqarena prepare lra TASK --data.path FILE` made of your own files;
# Retrieval only from those.
set -euo pipefail
cd "$(dirname "$0")/../.."
seqarena=${SEQARENA:-.venv/bin/seqarena}
"$seqarena" sweep lra listops text retrieval image pathfinder --preset xiong2021 \
    --attention softmax x3-14 x1-14 --seeds 0 1 2 "$@"
"$seqarena" leaderboard
