#!/bin/bash
# A private Slurm on this machine: munge, controller and node daemons under one folder, on ports of their own.
#
#   slurm.sh start FOLDER [NODES]    writes FOLDER/slurm.conf; use it with SLURM_CONF=FOLDER/slurm.conf
#   slurm.sh stop FOLDER
#
# With NODES above 1 the nodes are node1, node2, ..., all of them this machine.
#
# Needs root and `apt-get install slurm-wlm munge`.
set -euo pipefail
export PATH=$PATH:/usr/sbin

action=$1
folder=$2
nodes=${3:-1}

start() {
    mkdir -p "$folder"/{munge,state,spool,log}
    chmod 755 "$folder"
    chmod 700 "$folder/munge"
    dd if=/dev/urandom of="$folder/munge/key" bs=1024 count=1 status=none
    chmod 400 "$folder/munge/key"
    mkdir -p "$folder/run" # the socket's folder must be open to all, the key's to none
    munged --force --key-file="$folder/munge/key" --socket="$folder/run/munge.socket" --pid-file="$folder/run/munged.pid" \
        --log-file="$folder/log/munged.log" --seed-file="$folder/munge/seed"
    local first=${SLURMD_PORT:-16818} listed
    listed="NodeName=$(hostname -s) NodeAddr=127.0.0.1"
    if ((nodes > 1)); then
        listed="NodeName=node[1-$nodes] NodeHostname=$(hostname -s) NodeAddr=127.0.0.1 Port=[$first-$((first + nodes - 1))]"
    fi
    cat >"$folder/slurm.conf" <<CONF
ClusterName=test
SlurmctldHost=$(hostname -s)(127.0.0.1)
SlurmctldPort=${SLURMCTLD_PORT:-16817}
SlurmdPort=$first
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=$folder/run/munge.socket,cred_expire=5
CryptoType=crypto/munge
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool/%n
SlurmctldPidFile=$folder/run/slurmctld.pid
SlurmdPidFile=$folder/run/slurmd-%n.pid
SlurmctldLogFile=$folder/log/slurmctld.log
SlurmdLogFile=$folder/log/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=5,sched_min_interval=1000000
JobCompType=jobcomp/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
ReturnToService=2
JobRequeue=1
KillWait=5
MinJobAge=3600
OverTimeLimit=0
$listed CPUs=$(nproc) State=UNKNOWN
PartitionName=test Nodes=ALL Default=YES MaxTime=INFINITE State=UP
CONF
    export SLURM_CONF=$folder/slurm.conf
    slurmctld -c
    local number
    if ((nodes == 1)); then slurmd; else for ((number = 1; number <= nodes; number++)); do slurmd -N "node$number"; done; fi
    local waited
    for ((waited = 0; waited < 30; waited++)); do
        if [[ $(sinfo -h -t idle -o %D 2>/dev/null) == "$nodes" ]]; then return; fi
        sleep 1
    done
    echo "error: the nodes did not become idle; see $folder/log" >&2
    exit 1
}

stop() {
    export SLURM_CONF=$folder/slurm.conf
    local file
    for file in "$folder"/run/slurmd-*.pid "$folder/run/slurmctld.pid" "$folder/run/munged.pid"; do
        if [[ -s $file ]]; then kill "$(cat "$file")" 2>/dev/null || true; fi
    done
}

"$action"
