# Serve a model with vLLM on this node until the shell that sources this file ends; returns once the server answers.
#
#   source slurm/serve.sh MODEL PORT TENSOR_PARALLEL SECONDS LOG [PYTHON]
# shellcheck shell=bash

server_python=${6:-}
if [[ -z $server_python ]]; then # vLLM has its own environment in the NeMo RL container
    for server_python in /opt/ray_venvs/*VllmGenerationWorker/bin/python; do break; done
    [[ -x $server_python ]] || server_python=python
fi
"$server_python" -m vllm.entrypoints.openai.api_server --model "$1" --port "$2" --tensor-parallel-size "$3" >>"$5" 2>&1 &
server_pid=$!
trap 'kill "$server_pid" 2>/dev/null' EXIT
deadline=$((SECONDS + $4))
until (exec 3<>"/dev/tcp/localhost/$2") 2>/dev/null; do
    kill -0 "$server_pid" 2>/dev/null || { echo "error: vLLM ended before it answered; see $5" >&2; exit 1; }
    ((SECONDS < deadline)) || { echo "error: no answer from vLLM after $4 s; see $5" >&2; exit 1; }
    sleep 5
done
