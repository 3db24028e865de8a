#!/bin/sh
# torchrun.sh RANKS_PER_HOST PROGRAM ARGS...: runs this host's part of a torch job; mpirun starts it once per host.
if ! "$ACCEPT_PYTHON" -c 'import importlib.util, sys; sys.exit(not importlib.util.find_spec("torch"))'; then
    printf 'ACCEPT {"problem":"tool-missing","message":"%s","host":"%s"}\n' "no torch for $ACCEPT_PYTHON" "$ACCEPT_HOST"
    exit 1
fi
per_host=$1
shift
nodes=${OMPI_COMM_WORLD_SIZE:-1}
node_rank=${OMPI_COMM_WORLD_RANK:-0}
# torch's ranks are not MPI's ranks, so mpirun's variables would mislead libraries that read them.
for name in $(env | sed -n 's/^\(OMPI_[A-Za-z0-9_]*\|PMIX_[A-Za-z0-9_]*\|PRTE_[A-Za-z0-9_]*\)=.*/\1/p'); do
    unset "$name"
done
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
# Like `-m torch.distributed.run`, but without garbage collection at import and at exit, which takes a third of the time.
run='import gc; gc.disable(); from torch.distributed.run import main; gc.freeze(); gc.enable(); main()'
exec "$ACCEPT_PYTHON" -c "$run" --nnodes "$nodes" --nproc-per-node "$per_host" --node-rank "$node_rank" \
    --master-addr "${ACCEPT_MASTER_ADDR:-127.0.0.1}" --master-port "${ACCEPT_MASTER_PORT:-29500}" "$@"
