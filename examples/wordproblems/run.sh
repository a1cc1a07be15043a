#!/usr/bin/env bash
# The comparison on word problems from nothing: data, warm start, judge, suite. Killed anywhere, the same command goes on.
#
#   examples/wordproblems/run.sh MODEL [aopsd compare options]     # from the checkout, `aopsd` and its `python` on the PATH, one GPU
#   examples/wordproblems/run.sh smollm2.gguf --seeds 3 --jobs 8
#
# The warm start stops at the first look at which pass@1 on the dev problems is at least TARGET: docs/wordproblems.md.
set -euo pipefail

(($# >= 1)) || { echo "usage: $0 MODEL [aopsd compare options]; MODEL is a .gguf file or a model directory" >&2; exit 2; }
model=$1
shift
target=${TARGET:-0.33}
out=runs/wordproblems
warmstart=$out/warmstart

[[ -e $out/data/judge_cases.jsonl ]] || python -m examples.wordproblems --out "$out/data" --train 640

pass_at_1() { # of the newest evaluation
    python -c 'import json, pathlib, sys
newest = max(pathlib.Path(sys.argv[1]).glob("epoch_[0-9]*[0-9].json"))
print(json.loads(newest.read_text())["pass_at_k"]["1"])' "$warmstart/eval"
}

if [[ ! -e $out/model ]]; then
    for steps in {120..720..30}; do
        resume=()
        [[ -e $warmstart/config.yaml ]] && resume=(--resume "$warmstart")
        aopsd train examples/configs/wordproblems_warmstart.yaml "policy.model_name=$model" "aopsd.max_num_steps=$steps" "${resume[@]}"
        rate=$(pass_at_1)
        echo "warm start: pass@1 $rate on the dev problems after $steps steps"
        awk "BEGIN { exit !($rate >= $target) }" && break
    done
    awk "BEGIN { exit !($rate >= $target) }" || { echo "error: pass@1 $rate stayed below $target; lower TARGET, or train for longer" >&2; exit 1; }
    aopsd export "$warmstart" --out "$out/model"
fi

aopsd judge eval --cases "$out/data/judge_cases.jsonl" --problems "$out/data/heldout.jsonl" \
    --kind list --config examples/configs/wordproblems_smollm2.yaml | tee "$out/judge.txt"
aopsd compare examples/suites/wordproblems.yaml "$@"
