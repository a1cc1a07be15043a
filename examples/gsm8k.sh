#!/usr/bin/env bash
# GSM8K and a published model from nothing to a table, on one GPU. Killed anywhere, the same command goes on.
#
#   examples/gsm8k.sh MODEL TRAIN.jsonl [aopsd compare options]      # from the checkout, `aopsd` on the PATH
#   examples/gsm8k.sh ~/models/Qwen2.5-Coder-0.5B-Instruct train.jsonl --seeds 1 --jobs 4
#
# MODEL is a Hugging Face directory, TRAIN.jsonl that of https://github.com/openai/grade-school-math. SUITE=... runs another
# suite over the same data. Results of finished runs can be moved between machines: copy runs/compare/gsm8k_sweep.
set -euo pipefail

(($# >= 2)) || { echo "usage: $0 MODEL TRAIN.jsonl [aopsd compare options]" >&2; exit 2; }
model=$1 train=$2 out=runs/gsm8k
shift 2
[[ -e $model/config.json ]] || { echo "error: $model has no config.json; expected a Hugging Face model directory" >&2; exit 2; }

mkdir -p "$out/data"
ln -sfn "$(realpath "$model")" "$out/model"
[[ -e $out/data/train.dev.jsonl ]] || aopsd data gsm8k "$train" --out "$out/data/train.jsonl" --held-out 400
aopsd compare "${SUITE:-examples/suites/gsm8k_sweep.yaml}" "$@"
