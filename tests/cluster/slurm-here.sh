#!/usr/bin/env bash
# A real Slurm of one node on this machine, for tests. Needs root and Debian's slurmctld slurmd slurm-client munge.
# usage: slurm-here.sh start DIR [NODES] | slurm-here.sh stop DIR     then: export SLURM_CONF=DIR/slurm.conf, and sbatch, srun, squeue, scancel work
# NODES > 1 starts that many slurmd on ports of their own (one machine that plays several nodes).
set -eu
cmd=$1; d=$2; n=${3:-1}; mkdir -p "$d"; d=$(cd "$d" && pwd); host=$(hostname -s)
case $cmd in
  start)
    mkdir -p "$d/state" "$d/munge"; chmod 755 "$d"
    [ -f "$d/munge/key" ] || { head -c 1024 /dev/urandom >"$d/munge/key"; chmod 400 "$d/munge/key"; }
    chmod 700 "$d/munge"; mkdir -p "$d/run"; chmod 755 "$d/run"
    munged --force --key-file="$d/munge/key" --socket="$d/run/munge.socket" --pid-file="$d/run/munged.pid" --log-file="$d/munge/log" --seed-file="$d/munge/seed" >/dev/null 2>&1
    mem=$(awk '/MemTotal/{print int($2/1024/'"$n"'*0.9)}' /proc/meminfo); cpus=$(( $(nproc) / n )); [ "$cpus" -ge 1 ] || cpus=1
    port=$((20000 + RANDOM % 20000))
    { cat <<C
ClusterName=here
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$port
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$d/run/munge.socket
StateSaveLocation=$d/state
SlurmdSpoolDir=$d/spool.%n
SlurmctldPidFile=$d/run/slurmctld.pid
SlurmdPidFile=$d/run/slurmd.%n.pid
SlurmctldLogFile=$d/slurmctld.log
SlurmdLogFile=$d/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SchedulerType=sched/builtin
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
MpiDefault=none
JobRequeue=1
MinJobAge=300
KillWait=5
SlurmdTimeout=30
SlurmdParameters=config_overrides
C
      for i in $(seq 1 "$n"); do echo "NodeName=n$i NodeHostname=$host NodeAddr=127.0.0.1 Port=$((port + i)) CPUs=$cpus RealMemory=$mem State=UNKNOWN"; done
      echo "PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO"; } >"$d/slurm.conf"
    export SLURM_CONF=$d/slurm.conf
    mkdir -p "$d/cgroup"; printf 'CgroupPlugin=cgroup/v1\nIgnoreSystemd=yes\nCgroupMountpoint=%s\n' "$d/cgroup" >"$d/cgroup.conf"
    slurmctld -f "$SLURM_CONF"
    for i in $(seq 1 "$n"); do mkdir -p "$d/spool.n$i"; slurmd -N "n$i" -f "$SLURM_CONF"; done
    for i in $(seq 1 60); do sinfo -h -o %T 2>/dev/null | grep -q idle && { sinfo; exit 0; }; sleep .5; done
    echo "slurm-here: the nodes did not come up; see $d/*.log" >&2; tail -n 5 "$d"/slurm*.log >&2; exit 1 ;;
  stop)
    export SLURM_CONF=$d/slurm.conf
    for p in "$d"/run/slurmd.*.pid "$d/run/slurmctld.pid" "$d/run/munged.pid"; do [ ! -f "$p" ] || kill "$(cat "$p")" 2>/dev/null || true; done ;;
  *) echo "usage: slurm-here.sh start DIR [NODES] | stop DIR" >&2; exit 2 ;;
esac
