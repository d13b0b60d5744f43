#!/usr/bin/env bash
# The table of the tier small: all variants on every task that a CPU affords, five seeds, tuned learning rates. The
# design, the search for it and its state are in docs/small.md.
#
# Usage: scripts/reproduce/small.sh [TASK ...]; without a task, all of them: associative-recall, listops, scenes,
#   cifar10-patches, wikitext2, mnli, pathfinder, image, wire, and two for the table of norms in a deep model: norms,
#   deescalation.
# Data: generated or bundled, but for CIFAR-10, which comes from the hub, or from its archive, read ahead: seqarena prepare lra
#   cifar10-patches --preset hour --data.path cifar-10-binary.tar.gz.
# One run per core at a time. RUNS=FOLDER sets the folder of runs. An interrupted sweep goes on with the same command.
# After a diverged run the script goes on with the next task, and ends with status 1.
set -euo pipefail
cd "$(dirname "$0")/../.."
seqarena=${SEQARENA:-.venv/bin/seqarena} RUNS=${RUNS:-runs/small}
export OMP_NUM_THREADS=1
tasks="associative-recall listops scenes cifar10-patches wikitext2 mnli pathfinder image wire norms deescalation"
[ $# -gt 0 ] || set -- $tasks
for task; do
    case " $tasks " in
    *" $task "*) ;;
    *)
        echo "$task: not a task of the tier; choices: $tasks" >&2
        exit 2
        ;;
    esac
done
status=0
set +e
trap 'exit 130' INT # an interrupted sweep ends the script
for task; do
    case $task in
    associative-recall)
        "$seqarena" sweep lra associative-recall --preset small \
            --attention softmax dnas hnas x1-14 x3-14 relu sigmoid linear \
            --tune optim.lr 1e-3 3e-3 1e-2 --seeds 0 1 2 3 4 --tune-seeds 5 --runs "$RUNS" --parallel
        ;;
    listops)
        "$seqarena" sweep lra listops --preset hour \
            --attention softmax dnas hnas x1-14 x3-14 relu sigmoid linear cosformer nystromformer linformer \
            --tune optim.lr 5e-4 1e-3 2e-3 --seeds 0 1 2 3 4 --tune-seeds 5 --runs "$RUNS" --parallel
        ;;
    scenes)
        "$seqarena" sweep vqa scenes --preset toy --attention softmax dnas hnas x1-14 x3-14 relu sigmoid \
            --tune optim.lr 5e-3 1e-2 2e-2 --seeds 0 1 2 3 4 --tune-seeds 5 --runs "$RUNS" --parallel
        ;;
    cifar10-patches)
        "$seqarena" sweep lra cifar10-patches --preset hour --attention softmax dnas hnas x1-14 x3-14 relu sigmoid \
            --tune optim.lr 1e-3 2e-3 4e-3 --seeds 0 1 2 3 4 --tune-seeds 5 --runs "$RUNS" --parallel
        ;;
    wikitext2)
        "$seqarena" sweep pretraining wikitext2 --preset quick \
            --attention softmax dnas hnas x1-14 x3-14 relu sigmoid recency \
            --tune optim.lr 7.5e-4 1.5e-3 3e-3 --seeds 0 1 2 3 4 --tune-seeds 5 --runs "$RUNS" --parallel
        ;;
    mnli)
        "$seqarena" sweep qa mnli --preset quick --attention softmax dnas hnas x1-14 x3-14 relu sigmoid \
            --tune optim.lr 1e-3 2e-3 4e-3 --seeds 0 1 2 3 4 --tune-seeds 5 --runs "$RUNS" --parallel
        ;;
    pathfinder)
        "$seqarena" sweep lra pathfinder --preset quick --attention softmax dnas hnas x1-14 x3-14 relu sigmoid \
            --tune optim.lr 5e-4 1e-3 2e-3 --seeds 0 1 2 3 4 --tune-seeds 5 --runs "$RUNS" --parallel
        ;;
    image)
        "$seqarena" sweep lra image --preset quick --attention softmax dnas hnas x1-14 x3-14 relu sigmoid \
            --tune optim.lr 1e-3 2e-3 4e-3 --seeds 0 1 2 3 4 --tune-seeds 5 --runs "$RUNS" --parallel
        ;;
    wire)
        "$seqarena" sweep summarization wire --preset quick --attention softmax dnas hnas x1-14 x3-14 relu sigmoid \
            --tune optim.lr 1e-3 2e-3 4e-3 --seeds 0 1 2 3 4 --tune-seeds 5 --runs "$RUNS" --parallel
        ;;
    norms)
        "$seqarena" sweep lra cifar10-patches --preset hour-deep --norm pre post deepnorm b2t \
            --tune optim.lr 2.5e-4 5e-4 1e-3 --seeds 0 1 2 3 4 --tune-seeds 5 --runs "$RUNS" --parallel
        ;;
    deescalation)
        "$seqarena" sweep lra cifar10-patches --preset hour-deep --norm deescalated --model.norm.where block_output \
            --tune optim.lr 2.5e-4 5e-4 1e-3 --seeds 0 1 2 3 4 --tune-seeds 5 --runs "$RUNS" --parallel
        ;;
    esac
    code=$?
    [ "$code" -le 1 ] || exit "$code" # wrong use
    [ "$code" = 0 ] || status=1
done
"$seqarena" leaderboard --runs "$RUNS"
exit "$status"
