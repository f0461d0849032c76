#!/bin/bash
#SBATCH --job-name=endless
#SBATCH --time=00:00:03
#SBATCH --mem=64M
#SBATCH --mail-type=END
echo "job $SLURM_JOB_ID works until somebody stops it"
trap 'echo "asked to stop"; exit 0' TERM
while true; do sleep 0.2; done
