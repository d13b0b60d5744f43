#!/usr/bin/env bash
# Table 4 of P1: polynomial activations on Long Range Arena, three seeds each. Days on one GPU; months on a CPU.
# Needs AAN and CIFAR-10, IMDB or the hub: give their files as PREFIX options below, or put them where the hub is reachable.
set -euo pipefail
cd "$(dirname "$0")/../.."
seqarena=${SEQARENA:-.venv/bin/seqarena}
for task in listops text retrieval image pathfinder; do
    path_variable="${task^^}_PATH" # TEXT_PATH, RETRIEVAL_PATH, IMAGE_PATH: files of your own
    "$seqarena" sweep lra "$task" --preset xiong2021 --attention softmax x3-14 x1-14 --seeds 0 1 2 \
        ${!path_variable:+--data.path "${!path_variable}"} "$@"
done
"$seqarena" leaderboard
