#!/usr/bin/env bash
# Table 3 of P2: BERT pretrained with softmax and with hnas, then finetuned on SQuAD 1.1, SQuAD 2.0 and MNLI. Three
# seeds of pretraining, each finetuned under its own.
#
# Data: English Wikipedia (wikimedia/wikipedia:20231101.en), BookCorpus, SQuAD and MNLI, all from the hub.
# Needs: pip install 'seqarena[lamb]'.
# Cost: estimated, not run on a GPU. 108 hours per pretraining on one H200 at 40 % of its 989 T/s in bfloat16 (1.5e20
#   operations, the preset's estimate), 27 days for all six; --seeds 0 runs two. The finetunings of one pretraining take
#   1.8e17 operations, eight minutes at that rate.
# Printed (SQuAD 1.1 F1 and exact match, SQuAD 2.0 F1 and exact match, MNLI accuracy; per cent):
#   BERT-base  90.5  83.3  80.3  77.3  84.1
#   softmax    90.5  83.6  80.3  77.0  84.3
#   hnas       90.9  84.0  80.5  77.4  84.7
# Departs: P2 states the sizes of BERT-base, n-gram masking (n <= 3, random length, citing Joshi et al.) and the data
#   (BookCorpus, English Wikipedia). The presets albert-style and albert follow ALBERT's paper, which shares authors and
#   the row BERT-base with P2; the weights 1/n of the lengths are our inference from ALBERT. Wikipedia of 2023 and
#   BookCorpus; a hundredth of the finetuning examples is used for validation; the threshold of SQuAD 2.0 is 0
#   (ALBERT's: the best on dev).
# Arguments are passed to every sweep (--preset quick, --seeds 0). RUNS=FOLDER sets the folder of runs.
set -euo pipefail
cd "$(dirname "$0")/../.."
seqarena=${SEQARENA:-.venv/bin/seqarena} RUNS=${RUNS:-runs}
set -- --runs "$RUNS" "$@"
output=$(
    "$seqarena" sweep pretraining mlm --preset albert-style --attention softmax hnas --seeds 0 1 2 "$@" --json
)
plan=$(grep -o '"plan": "[^"]*"' <<<"$output" | cut -d '"' -f 4)
for FOLDER in $(grep -o '"folder": "[^"]*"' "$plan" | cut -d '"' -f 4); do
    seed=${FOLDER##*-seed}
    "$seqarena" sweep qa squad1 squad2 mnli --preset albert --model.init "$RUNS/$FOLDER" "$@" --seeds "${seed%%-*}"
done
"$seqarena" leaderboard --side-by-side --runs "$RUNS"
