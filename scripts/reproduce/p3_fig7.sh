#!/usr/bin/env bash
# Figure 7 of P3: a Transformer-XL of 60 layers on WikiText-103 under post-norm, pre-norm and de-escalated post-norm,
# in its causal form and in P3's own, whose mean over the segment sees the future. Three seeds.
#
# Data: WikiText-103, from the hub, or --data.path wikitext-103-v1.zip.
# Cost: 1.5 hours a run on one GPU that reaches 45 T/s on these small matrices (the preset's estimate: 2.4e17
#   operations; H100 class, a guess), 18 hours for the 12 runs. None of it ran on a GPU.
# Printed: curves of the training loss, of which no number is at hand. As P3 tells them: post-norm fails, pre-norm and
#   de-escalated post-norm do alike. Expected: very roughly perplexity 35 to 40 of what learns.
#   seqarena curves DIRECTORY draws a run's training loss.
# Departs: rate, memory, no warm-up and the cosine are the base model's, for P3 does not say; pre-norm has a last
#   LayerNorm (--model.norm.no-final: without). The row "non-causal" is P3's form and compares with no other.
#   For scale, 16 layers on as many tokens: seqarena sweep pretraining wikitext103 --preset base-50k --seeds 0 1 2
# Arguments go to every sweep (--preset quick, --seeds 0); RUNS=FOLDER is where the runs are.
# The same claim from 4 to 48 layers, in an hour and a half on one core: seqarena figures depth depth-layers
set -euo pipefail
cd "$(dirname "$0")/../.."
seqarena=${SEQARENA:-.venv/bin/seqarena} RUNS=${RUNS:-runs}
set -- --runs "$RUNS" "$@"
"$seqarena" sweep pretraining wikitext103 --preset deep60 --norm deescalated --model.norm.leaky --seeds 0 1 2 "$@"
"$seqarena" sweep pretraining wikitext103 --preset deep60 --norm pre deescalated post --seeds 0 1 2 "$@"
"$seqarena" leaderboard --runs "$RUNS"
