#!/bin/bash
# Checks the hosts of an MPI job: mpi.sh HOSTFILE RANKS TRAIN_PYTHON
# Open MPI sets no MASTER_ADDR, so it is taken from the first line of the host file.
set -euo pipefail

hosts=$1 ranks=$2 python=$3
first=$(awk 'NF && $1 !~ /^#/ { sub(/:.*/, "", $1); print $1; exit }' "$hosts")
exec mpirun --hostfile "$hosts" -np "$ranks" \
    -x MASTER_ADDR="$first" -x MASTER_PORT="${MASTER_PORT:-29500}" \
    "${CUDADOCTOR:-cudadoctor}" cluster --python "$python" --exit-zero
