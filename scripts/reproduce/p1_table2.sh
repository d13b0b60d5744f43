#!/usr/bin/env bash
# Tables 2 and 5 of P1: powers of the scores and other activations in place of softmax, in eight models of ImageNet-1k.
# Three seeds.
#
# Data: ImageNet-1k, from the hub (with your account), or --data.path FOLDER with train/CLASS/ and val/CLASS/.
# Cost: estimated, not run on a GPU. A run of ViT-Small has 1.0e19 operations, of ViT-Base 3.9e19: 63 and 240 hours on
#   one H100 at 45 T/s, a guess. MODELS="p1-vit-small" trains one model.
# Columns: ViT-Base, ViT-Small, DeiT-Base, DeiT-Small, Swin-Base, Swin-Small, XCiT-M, XCiT-S.
# Printed (top-1 accuracy, per cent; the last six rows are those of Table 5, which has two columns):
#   softmax  79.6  80.2  78.9  79.6  83.0  83.3  81.1  81.2
#   x3-14    79.6  80.5  77.4  78.3  83.2  83.4  81.2  82.1
#   x3-raw   77.8  78.6  76.1  76.3  79.7  79.9  78.1  78.3
#   x1-14    76.9  77.8  79.6  79.8  79.4  79.5  79.2  79.3
#   x1-raw   73.2  73.9  77.7  77.9  77.8  77.9  76.4  76.6
#   x2-14    78.7  79.9
#   relu     77.3  77.5
#   elu      78.2  78.5
#   gelu     78.2  78.4
#   tanh     77.1  77.3
#   exp      77.9  78.0
# Departs: recipes of He et al. 2022 (ViT), Touvron et al. 2021 (DeiT), Liu et al. 2021 (Swin) and El-Nouby et al. 2021
#   (XCiT), as far as the suite has them: each preset lists what is missing (seqarena lra imagenet --help). 50,000
#   training pictures are held out; the published validation set is the test set. We do not know P1's scale of the
#   activations of Table 5; here it is 1 / sqrt(N).
# Arguments are passed to every sweep (--seeds 0). --preset quick trains the vision transformer on drawn digits. MODELS
# names the presets, RUNS=FOLDER the folder of runs.
set -euo pipefail
cd "$(dirname "$0")/../.."
seqarena=${SEQARENA:-.venv/bin/seqarena} RUNS=${RUNS:-runs}
ALL="p1-vit-base p1-vit-small p1-deit-base p1-deit-small p1-swin-base p1-swin-small p1-xcit-medium p1-xcit-small"
MODELS=${MODELS:-$ALL}
if [[ " $* " == *" --preset quick "* ]]; then MODELS="p1-vit-small"; fi
set -- --runs "$RUNS" "$@"
for preset in $MODELS; do
    "$seqarena" sweep lra imagenet --preset "$preset" --attention softmax x3-14 x3-raw x1-14 x1-raw --seeds 0 1 2 "$@"
    if [[ $preset == p1-vit-* ]]; then
        "$seqarena" sweep lra imagenet --preset "$preset" --attention x2-14 relu elu gelu tanh exp --seeds 0 1 2 "$@"
    fi
done
"$seqarena" leaderboard --runs "$RUNS"
