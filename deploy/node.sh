#!/bin/bash
# Start this node of a group that trains one run together: node 0 runs the worker, the others join its runs.
# deploy/slurm and deploy/kueue start it once per node. docs/deploy.md explains the variables.
set -euo pipefail

# Slurm and Kubernetes number the nodes
export PROCTOR_NODE_RANK=${PROCTOR_NODE_RANK:-${SLURM_PROCID:-${JOB_COMPLETION_INDEX:-}}}
: "${PROCTOR_NODES:?number of nodes}" "${PROCTOR_NODE_RANK:?number of this node, from 0}"
: "${PROCTOR_NODES_ADDRESS:?host:port of node 0}"

if [[ $PROCTOR_NODE_RANK == 0 ]]; then
    exec python3 -m celery -A workers.tasks.celery_app worker -Q gpu -c 1 -n "gpu@%h" --without-gossip --without-mingle
fi
exec python3 -m workers.training.node
