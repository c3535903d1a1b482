#!/usr/bin/env bash
# Nodes for MPI on this machine: network namespaces with host names of their own on one bridge, one shared file system. Needs root, iproute2, openmpi-bin.
# usage: mpi-nodes start DIR [N]     makes nodes node1..nodeN (10.77.0.x) and writes DIR/mpirun, which starts ranks on them: DIR/mpirun -n 4 cbk …
#        mpi-nodes down DIR NODE | up DIR NODE     takes a node's network away | gives it back
#        mpi-nodes pids DIR NODE     processes of a node (to kill or stop)
#        mpi-nodes stop DIR
set -eu
cmd=$1; d=$2; mkdir -p "$d"; d=$(cd "$d" && pwd); tag=$(printf %s "$d" | cksum | cut -d' ' -f1 | tail -c 5); ns() { echo "m$tag-$1"; }
case $cmd in
  start)
    n=${3:-2}; echo "$n" >"$d/n"; ip link add "b$tag" type bridge; ip addr add 10.77.0.254/24 dev "b$tag"; ip link set "b$tag" up
    : >"$d/hosts"; : >"$d/hostfile"
    for i in $(seq 1 "$n"); do echo "10.77.0.$i node$i" >>"$d/hosts"; echo "node$i slots=8" >>"$d/hostfile"; done
    for i in $(seq 1 "$n"); do
      ip netns add "$(ns "$i")"; ip link add "v$tag$i" type veth peer name eth0 netns "$(ns "$i")"; ip link set "v$tag$i" master "b$tag" up
      ip -n "$(ns "$i")" addr add "10.77.0.$i/24" dev eth0; ip -n "$(ns "$i")" link set eth0 up; ip -n "$(ns "$i")" link set lo up
      # a process that holds the node's host name and its own /etc/hosts
      ip netns exec "$(ns "$i")" unshare --uts --mount sh -c "hostname node$i; cat /etc/hosts $d/hosts >$d/hosts.$i; mount --bind $d/hosts.$i /etc/hosts; exec sleep infinity" >/dev/null 2>&1 &
      echo $! >"$d/node$i.pid"
    done
    sleep .5
    cat >"$d/rsh" <<R
#!/bin/sh
# an rsh agent for Open MPI: enters the node of that name
while [ "\${1#-}" != "\$1" ]; do shift; done
host=\$1; shift; pid=\$(pgrep -P \$(cat $d/\$host.pid) 2>/dev/null | head -n 1); [ -n "\$pid" ] || pid=\$(cat $d/\$host.pid)
exec nsenter -t "\$pid" -n -u -m sh -c "\$*"
R
    cat >"$d/mpirun" <<R
#!/bin/sh
pid=\$(pgrep -P \$(cat $d/node1.pid) 2>/dev/null | head -n 1); [ -n "\$pid" ] || pid=\$(cat $d/node1.pid)
exec nsenter -t "\$pid" -n -u -m env --chdir="\$PWD" mpirun --allow-run-as-root --oversubscribe --bind-to none --map-by node --hostfile $d/hostfile --mca plm_rsh_agent $d/rsh --mca btl_tcp_if_include eth0 --mca oob_tcp_if_include eth0 --mca btl self,tcp --mca orte_keep_fqdn_hostnames 1 "\$@"
R
    chmod +x "$d/rsh" "$d/mpirun" ;;
  down) ip link set "v$tag${3#node}" down ;;
  up) ip link set "v$tag${3#node}" up ;;
  pids) ip netns pids "$(ns "${3#node}")" ;;
  stop)
    for i in $(seq 1 "$(cat "$d/n")"); do for p in $(ip netns pids "$(ns "$i")"); do kill -9 "$p" 2>/dev/null || true; done; ip netns del "$(ns "$i")" || true; done
    ip link del "b$tag" ;;
esac
