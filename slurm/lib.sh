# What the scripts of this folder share: settings, checks, submission, Ray over the allocation, requeue and resume.
# A script sets its own values, defines `driver` (prints the commands to run), and ends with `main "$@"`.
# shellcheck shell=bash
set -euo pipefail

script=$(readlink -f "$0") # before the next line: $0 may be relative
cd "$AOPSD_HOME"           # relative paths of all settings are taken from here
AOPSD_HOME=$PWD
# The checkout first, for every Python from here on, this host's and the job's; a job inherits it.
[[ ${PYTHONPATH:-}: == "$AOPSD_HOME":* ]] || export PYTHONPATH=$AOPSD_HOME${PYTHONPATH:+:$PYTHONPATH}

# Settings of the cluster: change them here or give them in the environment.
AOPSD_ACCOUNT=${AOPSD_ACCOUNT:-}                 # empty: your default account
AOPSD_PARTITION=${AOPSD_PARTITION:-}             # empty: the default partition
AOPSD_TIME=${AOPSD_TIME:-}                       # time limit; empty: the script's own
AOPSD_CONTAINER=${AOPSD_CONTAINER:-}             # image (.sqsh, registry name: Pyxis; .sif: Apptainer), or none
AOPSD_MOUNTS=${AOPSD_MOUNTS:-}                   # /here:/there,...; checkout, logs and run folder are added automatically
AOPSD_LOGS=${AOPSD_LOGS:-$AOPSD_HOME/runs/slurm} # a folder a job; must be on a file system that all nodes share
AOPSD_ENGINE=${AOPSD_ENGINE:-nemo_rl}            # local: one process without Ray, on a CPU or one GPU
AOPSD_LOCAL_GPUS=${AOPSD_LOCAL_GPUS:-}           # of a local job; empty: 1 where the partition's nodes have GPUs, else 0
AOPSD_PYTHON=${AOPSD_PYTHON:-}                   # empty: .venv of the checkout without a container, else python
AOPSD_CHECK=${AOPSD_CHECK:-true}                 # false: submit without the program's own check
AOPSD_SBATCH=${AOPSD_SBATCH:-}                   # further options of sbatch, such as --array=0-4 or --qos=long
AOPSD_RAY_PORT=${AOPSD_RAY_PORT:-9900}           # of Ray's head, and the next one
AOPSD_WAIT=${AOPSD_WAIT:-1800}                   # seconds to wait for all GPUs
AOPSD_GRACE=${AOPSD_GRACE:-60}                   # seconds from SIGTERM to SIGKILL when a run is stopped
AOPSD_MAX_RESTARTS=${AOPSD_MAX_RESTARTS:-50}     # requeues of one job after its time limit

[[ $AOPSD_LOGS == /* ]] || AOPSD_LOGS=$AOPSD_HOME/$AOPSD_LOGS # a mount of the container

die() { echo "error: $*" >&2; exit 2; }
say() { echo "[$(date '+%F %T')] $*"; }
in_job() { [[ ${0##*/} == slurm_script ]]; } # the name under which Slurm keeps a submitted script

main() {
    dry_run=false
    ARGS=()
    local word
    for word in "$@"; do
        case $word in
            --dry-run) dry_run=true ;;
            -h | --help) usage; exit 0 ;;
            *) ARGS+=("$word") ;;
        esac
    done
    if [[ $AOPSD_ENGINE == local ]]; then AOPSD_NODES=1; AOPSD_GPUS_PER_NODE=${AOPSD_LOCAL_GPUS:-$(local_gpus)}; fi
    if in_job; then AOPSD_NODES=$SLURM_JOB_NUM_NODES; fi # sbatch --nodes wins
    : "${AOPSD_PYTHON:=$(default_python)}"
    settle_task
    check_settings
    check_task
    check_environment
    if $dry_run; then show_plan; elif in_job; then run_job; else submit; fi
}

# Prints the head of the calling script, up to the first line that is not a comment.
usage() { sed -n '2,/^[^#]/{/^# /s/^# //p;/^#$/s/^#//p}' "$script"; }

default_python() {
    if [[ $AOPSD_CONTAINER == none && -x $AOPSD_HOME/.venv/bin/python ]]; then
        echo "$AOPSD_HOME/.venv/bin/python"
    else
        echo python
    fi
}

check_settings() {
    [[ $AOPSD_ENGINE == nemo_rl || $AOPSD_ENGINE == local ]] ||
        die "AOPSD_ENGINE is '$AOPSD_ENGINE'; it must be nemo_rl or local."
    [[ -n $AOPSD_CONTAINER ]] ||
        die "AOPSD_CONTAINER is not set: name the image of the NeMo RL container (.sqsh, .sif, or a registry's name), or none."
    if [[ $AOPSD_CONTAINER == /* || $AOPSD_CONTAINER == .* || $AOPSD_CONTAINER == *.sqsh || $AOPSD_CONTAINER == *.sif ]]; then
        check_file AOPSD_CONTAINER "$AOPSD_CONTAINER" "Import the image first: docs/slurm.md says how."
    fi
    local name
    for name in AOPSD_NODES AOPSD_GPUS_PER_NODE AOPSD_RAY_PORT AOPSD_WAIT AOPSD_GRACE AOPSD_MAX_RESTARTS; do
        [[ ${!name} =~ ^[0-9]+$ ]] || die "$name is '${!name}'; it must be a whole number."
    done
    local gpus=$((AOPSD_NODES * AOPSD_GPUS_PER_NODE))
    if [[ $AOPSD_ENGINE == nemo_rl ]] && ((gpus < ${AOPSD_MIN_GPUS:-1})); then
        die "too few GPUs: AOPSD_NODES x AOPSD_GPUS_PER_NODE = $AOPSD_NODES x $AOPSD_GPUS_PER_NODE = $gpus, this script needs ${AOPSD_MIN_GPUS:-1}."
    fi
    local pair
    for pair in ${AOPSD_MOUNTS//,/ }; do
        [[ $pair == *:* ]] || die "AOPSD_MOUNTS has '$pair'; write /here:/there, with commas between."
        [[ -e ${pair%%:*} ]] || die "AOPSD_MOUNTS names ${pair%%:*}, which is not there."
    done
    if [[ $AOPSD_CONTAINER == none && $AOPSD_PYTHON == */* && ! -x $AOPSD_PYTHON ]]; then
        die "AOPSD_PYTHON: $AOPSD_PYTHON is not there or cannot be run."
    fi
}

# NAME WORD: the script makes this setting or option of the program from the variable NAME; given twice, both would not agree.
check_own() {
    local word
    for word in "${ARGS[@]}"; do
        word=${word#+}
        [[ $word != "$2" && $word != "$2="* ]] || die "$2 is made from $1, which the job goes by as well: set $1 instead."
    done
}

# NAME PATH REMEDY
check_file() { [[ -r $2 ]] || die "$1: $2 is not there or cannot be read. $3"; }

# What Slurm itself would refuse: its own answer, without submitting. A dry run elsewhere says that nobody was asked.
check_cluster() {
    local listed told
    local -a command
    command -v sbatch >/dev/null || { no_cluster "sbatch is not on the PATH: submit from a login node of the cluster."; return; }
    listed=$(nodes_listed 2>/dev/null) || { no_cluster "sinfo failed: no answer from Slurm's controller."; return; }
    if ((AOPSD_GPUS_PER_NODE > 0)) && [[ -n $listed ]]; then check_gpus "$listed"; fi
    if [[ $AOPSD_CONTAINER != none && $AOPSD_CONTAINER != *.sif ]] && [[ $(srun --help) != *container-image* ]]; then
        die "AOPSD_CONTAINER=$AOPSD_CONTAINER needs Pyxis, which this Slurm lacks: use a .sif image (Apptainer) or none."
    fi
    sbatch_command --test-only
    told=$("${command[@]}" 2>&1) || die "Slurm would refuse this job: $(tr '\n' '.' <<<"${told//sbatch: /}")" \
        "Set AOPSD_PARTITION (\`sinfo --summarize\` lists them), AOPSD_ACCOUNT, AOPSD_TIME, AOPSD_NODES or AOPSD_SBATCH."
    if $dry_run; then sed -E 's/^(sbatch: )?/# Slurm: /; s/Job [0-9]+ to start/would start/' <<<"$told"; fi # a number of no job
}

no_cluster() { $dry_run || die "$1"; echo "# not checked: account, partition, limits and GPUs. $1"; }

# LISTED: of the job's partition
check_gpus() {
    local most elsewhere
    if [[ $1 == *gpu:* ]]; then
        most=$(gpus_of_gres <<<"$1" | sort -n | tail -1)
        ((most >= AOPSD_GPUS_PER_NODE)) ||
            die "too few GPUs: AOPSD_GPUS_PER_NODE=$AOPSD_GPUS_PER_NODE, nodes of the partition have $most at most."
    else # a Slurm that lists no GPUs at all hands out whole nodes
        elsewhere=$(sinfo --noheader --format '%P %G' | awk '/gpu:/ {print $1}' | sort -u | tr '\n' ' ')
        [[ -z $elsewhere ]] ||
            die "AOPSD_PARTITION: no node of ${AOPSD_PARTITION:-the default partition} has GPUs. Partitions that have some: $elsewhere"
    fi
}

gpus_of_gres() { grep -o 'gpu:[^,(]*' | sed 's/.*://'; }

# A line a kind of node with its partition and GPUs: those of the job's partition, which may be the default one (a star).
nodes_listed() {
    local listed partition=${SLURM_JOB_PARTITION:-$AOPSD_PARTITION}
    listed=$(sinfo --noheader --format '%P %G' ${partition:+--partition "$partition"}) || return
    if [[ -z $partition && $listed == *'* '* ]]; then grep -F '* ' <<<"$listed"; else echo "$listed"; fi
}

# Read the whole output, never `| grep -q`: grep exits at the first hit, and with pipefail the other command then fails.
has_gpus() { [[ $(nodes_listed 2>/dev/null) == *gpu:* ]]; }
has_gres() { ((AOPSD_GPUS_PER_NODE > 0)) && has_gpus; }

# The local engine takes a GPU where there is one. A job asks for no more than it was given.
local_gpus() {
    if in_job; then echo "${SLURM_GPUS_ON_NODE:-0}"; elif has_gpus; then echo 1; else echo 0; fi
}

# OPTION ... -> command=(sbatch ...)
sbatch_command() {
    local log=%x-%j.log
    if is_array; then log=%x-%A_%a.log; fi # named as the folder of each element
    command=(sbatch --parsable --nodes="$AOPSD_NODES" --output="$AOPSD_LOGS/$log" "$@")
    ask_slurm
    local -a further
    read -ra further <<<"$AOPSD_SBATCH"
    command+=("${further[@]}" "${ARRAY[@]}" "$script" "${ARGS[@]}")
}

# command += whose, where, how long and with how many GPUs; sbatch and srun have the same options
ask_slurm() {
    [[ -z $AOPSD_ACCOUNT ]] || command+=(--account="$AOPSD_ACCOUNT")
    [[ -z $AOPSD_PARTITION ]] || command+=(--partition="$AOPSD_PARTITION")
    [[ -z $AOPSD_TIME ]] || command+=(--time="$AOPSD_TIME")
    if has_gres; then command+=(--gres="gpu:$AOPSD_GPUS_PER_NODE"); fi
}

ARRAY=() # of sbatch, where a script works on a list
is_array() { ((${#ARRAY[@]})) || [[ $AOPSD_SBATCH == *--array* ]]; }

submit() {
    check_cluster
    run_check >&2
    mkdir -p "$AOPSD_LOGS" || die "AOPSD_LOGS: $AOPSD_LOGS cannot be made."
    export AOPSD_HOME
    local -a command
    sbatch_command
    local id
    id=$("${command[@]}") || die "sbatch refused; its own message is above."
    id=${id%%;*}
    echo "job $id: logs in $AOPSD_LOGS"
    tell_state "$id"
}

# Of the new job: where to look, and whether Slurm gives a reason to wait that may never pass.
tell_state() {
    local name state reason tries=5
    while ((tries-- > 0)); do
        sleep 1
        read -r name state reason < <(squeue --noheader --jobs "$1" --format '%j %T %r' 2>/dev/null) || return 0
        [[ $state == PENDING && $reason == None ]] || break
    done
    if is_array; then id+=_0; fi
    echo "once it runs: tail -F $AOPSD_LOGS/$name-$id/driver.log"
    case $state:$reason in
        PENDING:None | PENDING:Priority | PENDING:Resources | PENDING:BeginTime | PENDING:Dependency) ;;
        PENDING:*) echo "warning: it waits because of $reason, which may not pass by itself. Compare AOPSD_TIME, AOPSD_NODES and
AOPSD_SBATCH with \`sinfo --summarize\`; \`squeue --me\` shows the reason, scancel $1 takes the job back." >&2 ;;
    esac
}

# The program's own check, on this host and without a GPU: each script has a check_program that calls "$checker".
check_task() { :; }
settle_task() { :; } # what of a job's folder and size comes from a config
TOLD=()              # lines of a submission and a dry run: where settings come from

# MODULE ...: prints a Python of this host that has them. A container's own Python is out of reach.
python_with() {
    local candidate probe="import importlib.util as u, sys; sys.exit(None in map(u.find_spec, sys.argv[1:]))"
    for candidate in "$AOPSD_PYTHON" "$AOPSD_HOME/.venv/bin/python" python3; do
        if "$candidate" -c "$probe" "$@" 2>/dev/null; then echo "$candidate"; return; fi
    done
}

# The program's check, if this host has a Python that imports it.
run_check() {
    checker=
    if [[ $AOPSD_CHECK == true ]]; then
        checker=$(python_with nemo_aopsd torch transformers pydantic omegaconf math_verify)
    fi
    if [[ -n $checker ]]; then
        check_program
    elif [[ $AOPSD_CHECK == true ]]; then
        echo "# not checked: settings, problems and paths, for no Python of this host imports nemo_aopsd. Run make setup in $AOPSD_HOME."
    else
        echo "# not checked: settings, problems and paths (AOPSD_CHECK=$AOPSD_CHECK)"
    fi
    ((${#TOLD[@]} == 0)) || printf '# %s\n' "${TOLD[@]}"
    warn_of_environment
}

# COMMAND ...: a check of the program, and what it says as comments. Its refusal ends the submission.
tell_check() {
    local told
    told=$("$@" 2>&1) || die "${told#error: }
The settings above cannot be right; nothing was submitted."
    sed -n '/^warning: /s/^/# /p; $s/^ok/# checked/p' <<<"$told"
}

# All mounts of the container; without one, the job sees what this host sees.
all_mounts() {
    if [[ $AOPSD_CONTAINER == none ]]; then echo "/:/"; return; fi
    echo "$AOPSD_HOME:$AOPSD_HOME,$AOPSD_LOGS:$AOPSD_LOGS${AOPSD_RUN:+,$AOPSD_RUN:$AOPSD_RUN}${AOPSD_MOUNTS:+,$AOPSD_MOUNTS}"
}

# PATH, as seen in the job, lies below a mount.
is_mounted() {
    local path pair there
    path=$(realpath -ms "$1")
    for pair in $(all_mounts | tr , ' '); do
        there=${pair#*:}
        there=${there%%:*}
        [[ $there == / || $path == "$there" || $path == "$there"/* ]] && return
    done
    false
}

# NAME PATH
check_mounted() {
    local path
    path=$(realpath -ms "$2")
    is_mounted "$path" || die "$1: $path is in no mount of the container. Add it to AOPSD_MOUNTS: $path:$path, or the folder that has it."
}

# Folders that the environment names: what is in no mount, a job does not find or does not keep.
check_environment() {
    local name
    for name in HF_HOME HF_HUB_CACHE NRL_MEGATRON_CHECKPOINT_DIR; do
        [[ -z ${!name:-} ]] || check_mounted "$name" "${!name}"
    done
}

warn_of_environment() {
    local path searched=${PYTHONPATH:-}
    for path in ${searched//:/ }; do # what is not on this host may be in the image
        [[ ! -e $path ]] || is_mounted "$path" || echo "# warning: PYTHONPATH: $path is in no mount of the container, so jobs do not see it."
    done
    if [[ -z ${HF_HOME:-} && $AOPSD_CONTAINER != none && $AOPSD_CONTAINER != *.sif ]]; then
        echo "# warning: HF_HOME is not set: a model of the hub goes into the container's own cache, and each job loads it again."
    fi
}

show_plan() {
    run_check
    check_cluster
    SLURM_CPUS_ON_NODE=${SLURM_CPUS_ON_NODE:-CPUS}
    local -a command
    sbatch_command
    if [[ $AOPSD_ENGINE == local ]]; then
        echo "# GPUs of the local engine: $AOPSD_GPUS_PER_NODE (AOPSD_LOCAL_GPUS: ${AOPSD_LOCAL_GPUS:-not set, 1 where the partition has GPUs})"
    fi
    echo "# would submit, from $AOPSD_HOME:"
    printf '%q ' "${command[@]}"; echo
    logs=$AOPSD_LOGS/NAME-JOB
    head_node=HEAD
    local role
    for role in $(roles); do
        srun_command "$role"
        echo "# in the job, as $role:"
        printf '%q ' "${command[@]}"; echo
    done
    echo "# and as the driver ($(where_runs)), output in $logs/driver.log:"
    driver
    if uses_ray; then
        echo "# once $((AOPSD_NODES * AOPSD_GPUS_PER_NODE)) GPUs are there ($AOPSD_NODES x $AOPSD_GPUS_PER_NODE), within $AOPSD_WAIT s"
    fi
}

where_runs() { if [[ $AOPSD_CONTAINER == none ]]; then echo "no container"; else echo "in $AOPSD_CONTAINER"; fi; }

uses_ray() { [[ $AOPSD_ENGINE == nemo_rl && ${AOPSD_RAY:-true} == true ]]; }

roles() {
    if ! uses_ray; then echo single; return; fi
    echo head
    if ((AOPSD_NODES > 1)); then echo worker; fi
}

# ROLE -> command=(srun ...), one task a node
srun_command() {
    local role=$1 nodes=1
    command=(srun --overlap --ntasks-per-node=1 --cpus-per-task="$SLURM_CPUS_ON_NODE" --export=ALL)
    case $role in
        worker)
            nodes=$((AOPSD_NODES - 1))
            command+=(--exclude="$head_node" --kill-on-bad-exit=0 --output="$logs/ray-worker-%t.log")
            ;;
        head) command+=(--nodelist="$head_node" --output="$logs/ray-head.log") ;;
        single) command+=(--nodelist="$head_node" --output="$logs/node.log") ;;
    esac
    command+=(--nodes="$nodes" --ntasks="$nodes")
    if has_gres; then command+=(--gres="gpu:$AOPSD_GPUS_PER_NODE"); fi
    enter_container
    command+=(bash "$AOPSD_HOME/slurm/node.sh" "$role" "$logs")
}

# command += the container, if there is one. It can be written to: NeMo RL's workers patch files of vLLM and Transformer Engine.
enter_container() {
    local mounts
    mounts=$(all_mounts)
    case $AOPSD_CONTAINER in
        none) ;;
        *.sif) command+=(apptainer exec --nv --writable-tmpfs --bind "$mounts" --pwd "$AOPSD_HOME" "$AOPSD_CONTAINER") ;;
        *)
            command+=(--no-container-mount-home --container-writable --container-image="$AOPSD_CONTAINER")
            command+=(--container-mounts="$mounts" --container-workdir="$AOPSD_HOME")
            ;;
    esac
}

# The batch script of a job: starts the tasks on the nodes and waits for the head, whose exit code is the driver's.
run_job() {
    local restart=${SLURM_RESTART_COUNT:-0} id=$SLURM_JOB_ID
    [[ -z ${SLURM_ARRAY_TASK_ID:-} ]] || id=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID
    logs=$AOPSD_LOGS/$SLURM_JOB_NAME-$id
    ((restart == 0)) || logs+=-restart-$restart
    mkdir -p "$logs" ${AOPSD_RUN:+"$AOPSD_RUN"}
    rm -f "$logs/stop" "$logs/head-up"
    driver >"$logs/driver.sh"
    head_node=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -1)
    export AOPSD_HEAD=$head_node AOPSD_RAY_PORT AOPSD_NODES AOPSD_GPUS_PER_NODE AOPSD_PYTHON AOPSD_WAIT AOPSD_GRACE
    local first=
    if uses_ray; then first="ray-head.log until all GPUs are there, then "; fi
    say "job $id on $SLURM_JOB_NODELIST, attempt $((restart + 1)); logs in $logs: ${first}driver.log"
    local before
    before=$(progress)

    reason=
    trap 'reason=limit; touch "$logs/stop"' USR1 # --signal in the head of each script
    trap 'reason=stopped; touch "$logs/stop"' TERM INT
    local role code=0 head_pid worker_pid=
    local -a command
    for role in $(roles); do
        srun_command "$role"
        "${command[@]}" &
        if [[ $role == worker ]]; then worker_pid=$!; else head_pid=$!; fi
    done
    wait_for "$head_pid" "$worker_pid" || code=$?
    touch "$logs/stop" # the workers leave
    if [[ -n $worker_pid ]]; then wait "$worker_pid" || true; fi

    if [[ $reason == limit && $code != 0 ]]; then go_on "$restart" "$before"; fi
    if [[ $code != 0 && -z $reason ]]; then
        say "failed with exit code $code; the last lines of the driver:"
        tail -n 5 "$logs/driver.log" "$logs"/ray-*.log "$logs/node.log" 2>/dev/null || true
    fi
    case $reason in
        # Slurm sends the same signal for all three, and srun's exit code says nothing then.
        stopped) say "stopped by scancel, by a requeue or for a failed node; if it goes on, \`squeue --me\` lists job $id" ;;
        *) say "ended with exit code $code${reason:+ ($reason)}" ;;
    esac
    exit "$code"
}

# HEAD_PID WORKER_PID: returns the exit code of the head's srun. `wait` returns early on a signal, hence the loop.
wait_for() {
    while kill -0 "$1" 2>/dev/null; do
        if [[ -n $2 && ! -e $logs/stop ]] && ! kill -0 "$2" 2>/dev/null; then
            say "the Ray workers ended before the driver; stopping it. Their last words are in $logs/ray-worker-*.log"
            touch "$logs/stop"
        fi
        sleep 1 &
        wait $! || true
    done
    wait "$1"
}

# What the next attempt can start from; a script says what of its own folder that is.
progress() { :; }

# FOLDER: of a run. Steps that no checkpoint holds are made again, so metrics and rollouts don't count.
kept_of_run() {
    local checkpoints
    [[ -f $1/config.yaml ]] || return 0
    checkpoints=$(sed -n 's/^  checkpoint_dir: //p' "$1/config.yaml")
    find "$1/eval" "$1/initial_progress.jsonl" "$checkpoints" \( -path '*/step_*/state.json' -o -name '*.jsonl' \) \
        -size +0 -exec cksum {} + 2>/dev/null | sort || true # not all of them are there
}

# RESTARTS PROGRESS_BEFORE: requeue the job, unless the attempt left nothing that the next one could start from.
go_on() {
    local by_hand="Go on with the same command."
    if [[ $(progress) == "$2" ]]; then
        say "time limit reached before anything was saved; not requeued. Give more time, or lower checkpointing.save_period. $by_hand"
        exit 1
    fi
    (($1 < AOPSD_MAX_RESTARTS)) || { say "requeued $1 times already (AOPSD_MAX_RESTARTS). $by_hand"; exit 1; }
    say "time limit near; requeued, and will resume from the newest checkpoint"
    trap '' TERM # the requeue ends this script
    scontrol requeue "$SLURM_JOB_ID" || { say "Slurm does not requeue this job. $by_hand"; exit 1; }
    sleep 600
}
