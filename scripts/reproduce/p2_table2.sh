#!/usr/bin/env bash
# Table 2 of P2: headlines of Gigaword, the encoder from nothing and from BERT. Three seeds.
#
# Data: Gigaword's pairs, your own copy, in any layout of docs/summarization.md: --data.path FOLDER. BERT comes from the
#   hub, or CHECKPOINT=FOLDER names it; with --preset quick and no CHECKPOINT a quick BERT is pretrained instead.
# Cost: 1.2e17 operations an epoch (the preset), ten epochs; an estimate of the time, for none of it ran on a GPU:
#   50 minutes a run on one H200 at 40 % of its 989 T/s in bfloat16, 10 hours for the 12 runs, evaluation left out.
# Printed (ROUGE-1, ROUGE-2, ROUGE-L: F1, per cent):
#   softmax, from nothing  38.15  18.73  35.23
#   hnas, from nothing     38.47  19.11  35.71
#   softmax, from BERT     38.90  19.65  36.24
#   hnas, from BERT        39.06  20.14  36.51
# Departs: P2 states neither steps, batch, warm-up, search and scorer, nor which of a decoder's attentions are hnas
#   (here none: the encoder's alone; --model.decoder-attention hnas, --model.cross-attention hnas), nor whether the
#   decoder starts from BERT too (here not) and BERT was pretrained with hnas (here not: u starts at 0).
# Arguments go to every sweep (--preset quick, --seeds 0); RUNS=FOLDER is where the runs are.
set -euo pipefail
cd "$(dirname "$0")/../.."
seqarena=${SEQARENA:-.venv/bin/seqarena} RUNS=${RUNS:-runs}
set -- --runs "$RUNS" "$@"
"$seqarena" sweep summarization gigaword --preset paper --attention softmax hnas --seeds 0 1 2 "$@"
if [[ -z ${CHECKPOINT:-} && " $* " == *" --preset quick "* ]]; then
    NAMES=() # the arguments without fields, which are those of the headlines
    for word in "$@"; do
        case ${word%%=*} in --*.*) field=yes ;; --*) field= ;; esac
        [[ -n $field ]] || NAMES+=("$word")
    done
    told=$(
        "$seqarena" sweep pretraining mlm "${NAMES[@]}" --attention softmax --seeds 0 --json --model.max-length 80 \
            --train.steps 100 --optim.schedule.warmup 10
    )
    plan=$(grep -o '"plan": "[^"]*"' <<<"$told" | cut -d '"' -f 4)
    CHECKPOINT=$RUNS/$(grep -o '"folder": "[^"]*"' "$plan" | cut -d '"' -f 4)
fi
"$seqarena" sweep summarization gigaword --preset paper --attention softmax hnas --seeds 0 1 2 \
    --model.encoder-init "${CHECKPOINT:-google-bert/bert-base-uncased}" "$@"
"$seqarena" leaderboard --runs "$RUNS"
