#!/bin/bash
# What one node of a job does, inside the container if there is one. lib.sh starts it through srun.
#
#   node.sh head|worker|single LOGS
#
# head: start Ray, wait for all GPUs, run LOGS/driver.sh, end with its exit code. worker: join Ray until LOGS/stop is
# there. single: run LOGS/driver.sh without Ray. LOGS/stop ends each of them, wherever it runs.
set -euo pipefail

role=$1
logs=$2
driver_pid=
ray_pid=
ray_starts=3 # beyond the first

die() { echo "error: $*" >&2; exit 2; }

# Ray's worker ports stay below the kernel's ephemeral ones, apart from those that NeMo RL gives to vLLM and its trainer.
ray_options=(--disable-usage-stats --min-worker-port=10002 --max-worker-port=11000)
ray_options+=(--resources="{\"worker_units\": $AOPSD_GPUS_PER_NODE, \"slurm_managed_ray_cluster\": 1}")

check_node() {
    [[ -r $logs/driver.sh ]] || die "$(hostname) does not see $logs: AOPSD_LOGS must be on a file system that all nodes share."
    local found
    if ((AOPSD_GPUS_PER_NODE > 0)) && [[ -z ${AOPSD_FAKE_GPUS:-} ]]; then
        found=$(nvidia-smi --list-gpus 2>/dev/null | grep -c '^GPU ' || true)
        ((found >= AOPSD_GPUS_PER_NODE)) || die "too few GPUs: $(hostname) has $found, AOPSD_GPUS_PER_NODE is $AOPSD_GPUS_PER_NODE."
    fi
}

# Address of this node for the others: what its name resolves to, unless that is loopback, which Ray cannot serve on.
address() {
    local found
    found=$(getent ahostsv4 "$AOPSD_HEAD" | awk 'NR == 1 {print $1}')
    if [[ -z $found || $found == 127.* ]]; then found=$(hostname -I | awk '{print $1}'); fi
    echo "$found"
}

run_driver() {
    [[ -z ${RAY_ADDRESS:-} ]] || echo "the driver starts; its output is in $logs/driver.log"
    setsid bash "$logs/driver.sh" >>"$logs/driver.log" 2>&1 & # in its own process group: a signal reaches all of it
    driver_pid=$!
    until [[ -e $logs/stop ]] || ! kill -0 "$driver_pid" 2>/dev/null; do
        if [[ -n $ray_pid ]] && ! kill -0 "$ray_pid" 2>/dev/null; then tell_ray_died; break; fi
        sleep 1
    done
    if kill -0 "$driver_pid" 2>/dev/null; then end_driver; fi
    local code=0
    wait "$driver_pid" || code=$?
    if [[ $code != 0 && -n $ray_pid && ! -e $logs/stop ]]; then
        touch "$logs/failed" # each node keeps its logs
        keep_ray_logs || true
    fi
    return "$code"
}

# Runs Ray as a blocking child whose processes end with it. `ray stop` would also end those of other jobs
# on this machine.
start_ray() { ray start --block "${ray_options[@]}" & ray_pid=$!; }

end_ray() {
    [[ -n $ray_pid ]] || return 0
    kill -TERM "$ray_pid" 2>/dev/null || return 0
    local left=30
    while ((left-- > 0)) && kill -0 "$ray_pid" 2>/dev/null; do sleep 1; done
    kill -KILL "$ray_pid" 2>/dev/null || true
}

# Ray gives up if its own node is not up in 30 s, on a slow host or where many join at once. Until the driver runs it can be
# started again.
keep_ray() {
    if kill -0 "$ray_pid" 2>/dev/null; then return; fi
    tell_ray_died
    if [[ -e $logs/driver.log ]] || ((ray_starts-- == 0)); then exit 2; fi
    echo "starting Ray again"
    sleep 5
    start_ray
}

ray_logs=${RAY_TMPDIR:-${TMPDIR:-/tmp}}/ray/session_latest/logs

# A container's /tmp ends with it. Ray's workers write there, too.
keep_ray_logs() { cp -rLT "$ray_logs" "$logs/ray-of-$(hostname)" 2>/dev/null; }

tell_ray_died() {
    local kept
    kept=$logs/ray-of-$(hostname)
    tail -n 2 "$ray_logs/ray_process_exit.log" >&2 2>/dev/null || true # which of its processes; Ray does not always print it
    keep_ray_logs || kept="$ray_logs there"
    echo "error: Ray died on $(hostname); its own logs are in $kept" >&2
}

end_driver() {
    echo "stopping the driver"
    kill -TERM -- "-$driver_pid" 2>/dev/null || return 0
    local left=$AOPSD_GRACE
    while ((left-- > 0)) && kill -0 -- "-$driver_pid" 2>/dev/null; do sleep 1; done
    kill -KILL -- "-$driver_pid" 2>/dev/null || true
}

wait_for_gpus() {
    local wanted=$((AOPSD_NODES * AOPSD_GPUS_PER_NODE)) found=0 deadline=$((SECONDS + AOPSD_WAIT))
    while [[ ! -e $logs/stop ]]; do
        found=$(timeout 60 "$AOPSD_PYTHON" -W ignore - <<'PYTHON'
import logging, os, ray
ray.init(address=os.environ["RAY_ADDRESS"], log_to_driver=False, logging_level=logging.ERROR)
print(int(ray.cluster_resources().get("worker_units", 0)))
PYTHON
        ) || found=0
        keep_ray
        echo "$found of $wanted GPUs are there"
        ((found < wanted)) || return 0
        ((SECONDS < deadline)) || die "after $AOPSD_WAIT s only $found of $wanted GPUs are there; see ray-worker-*.log."
        sleep 5
    done
    die "stopped while waiting for GPUs."
}

case $role in
    single)
        check_node
        trap 'touch "$logs/stop"' TERM
        run_driver
        ;;
    head)
        check_node
        trap 'touch "$logs/stop"' TERM
        trap end_ray EXIT
        RAY_ADDRESS=$(address):$AOPSD_RAY_PORT
        export RAY_ADDRESS RAY_ENABLE_UV_RUN_RUNTIME_ENV=0
        # Ray's client server, which cannot be turned off, gives up if the node is not up 30 s later, and all of Ray with it.
        # The dashboard's start would use up that time on a slow host. Two jobs on a node would share the default port 10001.
        ray_options+=(--head --node-ip-address="${RAY_ADDRESS%:*}" --port="$AOPSD_RAY_PORT" --include-dashboard=false)
        ray_options+=(--ray-client-server-port=$((AOPSD_RAY_PORT + 1)))
        start_ray
        until (: >"/dev/tcp/${RAY_ADDRESS%:*}/$AOPSD_RAY_PORT") 2>/dev/null || [[ -e $logs/stop ]]; do keep_ray; sleep 1; done
        echo "$RAY_ADDRESS" >"$logs/head-up.partial"
        mv "$logs/head-up.partial" "$logs/head-up"
        wait_for_gpus
        run_driver
        ;;
    worker)
        check_node
        trap 'touch "$logs/stop"' TERM
        trap end_ray EXIT
        export RAY_ENABLE_UV_RUN_RUNTIME_ENV=0
        until [[ -e $logs/head-up || -e $logs/stop ]]; do sleep 2; done
        ray_options+=(--address="$(cat "$logs/head-up" 2>/dev/null || true)")
        [[ -e $logs/stop ]] || start_ray
        until [[ -e $logs/stop ]]; do
            keep_ray
            sleep 2
        done
        [[ ! -e $logs/failed ]] || keep_ray_logs || true
        ;;
    *) die "unknown role '$role'" ;;
esac
