#!/bin/sh
# Tests on two nodes of MPI and under a real Slurm, both on this machine, and kills at many random moments: cluster.sh CBK [KILLS]
# It needs root, and installs what is missing. About half an hour; `bash bootstrap test cluster` runs the short ones.
set -eu

cbk=$(realpath "$1") kills=${2:-50}
top=$(dirname "$0")
missing=
for package in openmpi-bin iproute2 util-linux slurmctld slurmd slurm-client munge procps; do
  dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing="$missing $package"
done
# shellcheck disable=SC2086  # a list
[ -z "$missing" ] || apt-get install -y -qq --no-install-recommends $missing >/dev/null

status=0
/usr/bin/python3 "$top/interop/cluster_interop.py" --cbk "$cbk" --kills $((4 * kills)) || status=1
/usr/bin/python3 "$top/cluster/cluster.py" --cbk "$cbk" --kills "$kills" || status=1
exit "$status"
