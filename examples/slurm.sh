#!/bin/bash
# A corpus in 16 parts, joined, then a run on the 8 GPUs of one node:
#   parts=$(sbatch --parsable --array=1-16 slurm.sh part)
#   corpus=$(sbatch --parsable --dependency=afterok:$parts slurm.sh join)
#   sbatch --dependency=afterok:$corpus --gpus-per-node=8 --requeue slurm.sh train
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=16
#SBATCH --time=24:00:00
set -euo pipefail

case "$1" in
part)
    # SAMPLE/tokeniser comes from: staircase prepare text SAMPLE.jsonl --output SAMPLE
    staircase prepare text raw/ --tokeniser SAMPLE/tokeniser --output corpora/base \
        --part "$SLURM_ARRAY_TASK_ID/16"
    ;;
join)
    staircase prepare join corpora/base.part-*-of-16 --output corpora/base
    ;;
train)
    torchrun --standalone --nproc-per-node=8 --max-restarts=3 --no-python staircase \
        train base/staircase-n8-c32 training.precision=bfloat16 --output runs/base --resume
    ;;
esac
