#!/usr/bin/env bash
# Figure 7 of P3: a Transformer-XL of 60 layers on WikiText-103 under post-norm, pre-norm and de-escalated post-norm,
# in a causal form and in P3's form, whose mean over the segment sees the future. Three seeds.
#
# Data: WikiText-103, from the hub, or --data.path wikitext-103-v1.zip.
# Cost: estimated, not run on a GPU. 1.5 hours per run on one GPU that reaches 45 T/s on these small matrices (2.4e17
#   operations, the preset's estimate; H100 class, a guess), 18 hours for the 12 runs.
# Printed: curves of the training loss, means of at least three trials; we know of no numbers. According to P3,
#   post-norm fails; pre-norm and de-escalated post-norm are alike. Expected: very roughly perplexity 35 to 40 for the
#   runs that learn.
#   seqarena curves DIRECTORY plots a run's training loss.
# Departs: in no setting that we know: those of its section 3.4, all others from Dai et al. 2019, as P3 says. The length
#   of the cosine schedule (50,000 steps) is our reading, and so is that de-escalation before a feed-forward changes the
#   stream; segment and memory are Dai et al.'s 150. Pre-norm has a final LayerNorm, which the code of Dai et al. lacks
#   (without: --model.norm.no-final). The row "non-causal" is P3's form and not comparable with others.
#   Baseline, 16 layers on as many tokens: seqarena sweep pretraining wikitext103 --preset base-50k --seeds 0 1 2
# Arguments are passed to every sweep (--preset quick, --seeds 0). RUNS=FOLDER sets the folder of runs.
# The same claim from 4 to 48 layers, in three hours on one core: seqarena figures depth depth-layers
set -euo pipefail
cd "$(dirname "$0")/../.."
seqarena=${SEQARENA:-.venv/bin/seqarena} RUNS=${RUNS:-runs}
set -- --runs "$RUNS" "$@"
"$seqarena" sweep pretraining wikitext103 --preset deep60 --norm deescalated --model.norm.leaky --seeds 0 1 2 "$@"
"$seqarena" sweep pretraining wikitext103 --preset deep60 --norm pre deescalated post --seeds 0 1 2 "$@"
"$seqarena" leaderboard --runs "$RUNS"
