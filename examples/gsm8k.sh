#!/usr/bin/env bash
# GSM8K and a published model from nothing to a table, on one GPU. Killed anywhere, the same command goes on.
#
#   examples/gsm8k.sh MODEL TRAIN.jsonl [aopsd compare options]      # `aopsd` on the PATH; files go to runs/ of the checkout
#   examples/gsm8k.sh ~/models/Qwen2.5-Coder-0.5B-Instruct train.jsonl --seeds 1 --jobs 2    # 25 runs, about 8 minutes each
#
# A card of 80 GB has room for --jobs 2 with the 0.5B (at most 28 GB a run) and for --jobs 1 with the 1.5B (at most 70 GB):
#   aopsd plan examples/configs/gsm8k.yaml --gpu h100 policy.model_name=MODEL
# MODEL is a Hugging Face directory, TRAIN.jsonl that of https://github.com/openai/grade-school-math. SUITE=... runs another
# suite over the same data. Results of finished runs can be moved between machines: copy runs/compare/gsm8k_sweep.
set -euo pipefail

(($# >= 2)) || { echo "usage: $0 MODEL TRAIN.jsonl [aopsd compare options]" >&2; exit 2; }
model=$(realpath "$1") train=$(realpath "$2") out=runs/gsm8k
shift 2
[[ -e $model/config.json ]] || { echo "error: $model has no config.json; expected a Hugging Face model directory" >&2; exit 2; }
[[ -f $train ]] || { echo "error: $train: no such file; expected GSM8K's train.jsonl" >&2; exit 2; }
cd "$(dirname "$0")/.."

# Another model or file would be mixed with the results that are there.
sources="$(sha256sum "$train" "$model/config.json" | cut -c 1-64 | tr '\n' ' ')$model"
if [[ -e $out/sources ]] && [[ $(< "$out/sources") != "$sources" ]]; then
    echo "error: $PWD/$out was made with another model or file. Move it and runs/compare/gsm8k_sweep away, or name the same ones." >&2
    exit 2
fi
mkdir -p "$out/data"
[[ -e $out/data/train.dev.jsonl ]] || aopsd data gsm8k "$train" --out "$out/data/train.jsonl" --held-out 400
ln -sfn "$model" "$out/model"
echo "$sources" > "$out/sources"
aopsd compare "${SUITE:-examples/suites/gsm8k_sweep.yaml}" "$@"
