#!/usr/bin/env bash
# Table 2 of P2: headlines of Gigaword, with encoder and decoder randomly initialised, and both from BERT. Three seeds.
#
# Data: your copy of Gigaword's pairs, in any layout of docs/summarization.md: --data.path FOLDER. BERT is loaded from
#   the hub, or from CHECKPOINT=FOLDER; with --preset quick and no CHECKPOINT a quick BERT is pretrained instead.
# Cost: 1.2e17 operations per epoch (from the preset), ten epochs. Time estimated, not run on a GPU: 50 minutes per run
#   on one H200 at 40 % of its 989 T/s in bfloat16, 10 hours for the 12 runs, without evaluation.
# Printed (ROUGE-1, ROUGE-2, ROUGE-L: F1, per cent):
#   softmax, random init   38.15  18.73  35.23
#   hnas, random init      38.47  19.11  35.71
#   softmax, from BERT     38.90  19.65  36.24
#   hnas, from BERT        39.06  20.14  36.51
#   Transformer, random    38.05  18.95  35.26  (Goodman et al. 2019, as P2 quotes them, like the next three)
#   Transformer, BERT      38.96  19.55  36.22  (Goodman et al. 2019)
#   SEASS                  36.15  17.54  33.63
#   Base+E2Tcnn+sd         37.04  16.66  34.93
# Departs: we do not know P2's steps, batch size, warm-up, search and scorer; nor which decoder attentions are hnas
#   (here none, only the encoder's; --model.decoder-attention hnas, --model.cross-attention hnas); nor whether BERT was
#   pretrained with hnas (here not: u starts at 0). P2 prints <BERT,BERT>: both sides start from BERT here, and
#   attention from the decoder to the text is random. "12 layers" is read as 12 in the encoder and 12 in the decoder.
# Arguments are passed to every sweep (--preset quick, --seeds 0). RUNS=FOLDER sets the folder of runs.
set -euo pipefail
cd "$(dirname "$0")/../.."
seqarena=${SEQARENA:-.venv/bin/seqarena} RUNS=${RUNS:-runs}
set -- --runs "$RUNS" "$@"
"$seqarena" sweep summarization gigaword --preset paper --attention softmax hnas --seeds 0 1 2 "$@"
if [[ -z ${CHECKPOINT:-} && " $* " == *" --preset quick "* ]]; then
    NAMES=() # the arguments without fields, which belong to the headline runs
    for word in "$@"; do
        case ${word%%=*} in --*.*) field=yes ;; --*) field= ;; esac
        [[ -n $field ]] || NAMES+=("$word")
    done
    output=$(
        "$seqarena" sweep pretraining mlm "${NAMES[@]}" --attention softmax --seeds 0 --json --model.max-length 80 \
            --train.steps 100 --optim.schedule.warmup 10
    )
    plan=$(grep -o '"plan": "[^"]*"' <<<"$output" | cut -d '"' -f 4)
    CHECKPOINT=$RUNS/$(grep -o '"folder": "[^"]*"' "$plan" | cut -d '"' -f 4)
fi
CHECKPOINT=${CHECKPOINT:-google-bert/bert-base-uncased}
"$seqarena" sweep summarization gigaword --preset paper --attention softmax hnas --seeds 0 1 2 \
    --model.encoder-init "${CHECKPOINT}" --model.decoder-init "${CHECKPOINT}" "$@"
"$seqarena" leaderboard --runs "$RUNS"
