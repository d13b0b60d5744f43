#!/usr/bin/env bash
# The table of the tier small: all variants on every task that a CPU affords, five seeds, tuned learning rates. The
# design, the search for it and its state are in docs/small.md.
#
# Usage: scripts/reproduce/small.sh [TASK ...]; without a task, all of them: associative-recall, listops, scenes,
#   cifar10-patches, wikitext2, mlm, mnli, pathfinder, image, wire, and two for the table of norms in a deep model:
#   norms, deescalation.
# Data: generated or bundled, but for CIFAR-10, which comes from the hub, or from its archive, read ahead: seqarena prepare lra
#   cifar10-patches --preset hour --data.path cifar-10-binary.tar.gz.
# One run per core at a time. RUNS=FOLDER sets the folder of runs. An interrupted sweep goes on with the same command.
# After a diverged run the script goes on with the next task, and ends with status 1.
set -euo pipefail
cd "$(dirname "$0")/../.."
seqarena=${SEQARENA:-.venv/bin/seqarena} RUNS=${RUNS:-runs/small}
export OMP_NUM_THREADS=1
tasks="associative-recall listops scenes cifar10-patches wikitext2 mlm mnli pathfinder image wire norms deescalation"
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
variants="softmax dnas hnas x1-14 x3-14 relu sigmoid" # of every task
status=0
set +e
trap 'exit 130' INT # an interrupted sweep ends the script
# Sweeps a task: package, task, preset, learning rates in one word, then the other options.
sweep_task() {
    "$seqarena" sweep "$1" "$2" --preset "$3" "${@:5}" --tune optim.lr $4 --seeds 0 1 2 3 4 --tune-seeds 5 \
        --runs "$RUNS" --parallel
}
for task; do
    case $task in
    associative-recall) sweep_task lra "$task" small "1e-3 3e-3 1e-2" --attention $variants linear ;;
    listops)
        sweep_task lra "$task" hour "5e-4 1e-3 2e-3" --attention $variants linear cosformer nystromformer linformer
        ;;
    scenes) sweep_task vqa "$task" toy "5e-3 1e-2 2e-2" --attention $variants ;;
    cifar10-patches) sweep_task lra "$task" hour "1e-3 2e-3 4e-3" --attention $variants ;;
    wikitext2) sweep_task pretraining "$task" quick "7.5e-4 1.5e-3 3e-3" --attention $variants recency ;;
    mlm) sweep_task pretraining "$task" quick "2e-3 4e-3 8e-3" --attention $variants ;;
    mnli) sweep_task qa "$task" quick "1e-3 2e-3 4e-3" --attention $variants ;;
    pathfinder) sweep_task lra "$task" quick "5e-4 1e-3 2e-3" --attention $variants ;;
    image) sweep_task lra "$task" quick "1e-3 2e-3 4e-3" --attention $variants ;;
    wire) sweep_task summarization "$task" quick "1e-3 2e-3 4e-3" --attention $variants ;;
    norms) sweep_task lra cifar10-patches hour-deep "2.5e-4 5e-4 1e-3" --norm pre post deepnorm b2t ;;
    deescalation)
        sweep_task lra cifar10-patches hour-deep "2.5e-4 5e-4 1e-3" --norm deescalated --model.norm.where block_output
        ;;
    esac
    code=$?
    [ "$code" -le 1 ] || exit "$code" # wrong use
    [ "$code" = 0 ] || status=1
done
"$seqarena" leaderboard --runs "$RUNS"
exit "$status"
