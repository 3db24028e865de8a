#!/bin/sh
# Prints the identity and the place of one rank, in one write, so that the lines of ranks do not mix.
python=${ACCEPT_PYTHON:-python3}
mpi4py=false
"$python" -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("mpi4py") is None)' 2>/dev/null && mpi4py=true
local_rank=${ACCEPT_LOCAL_RANK:-${OMPI_COMM_WORLD_LOCAL_RANK:-0}}
# shellcheck source=/dev/null
. "$(dirname "$0")/../gpus.sh"
gpus=$(list_gpus "$(dirname "$0")"; echo end)
own=$((local_rank + 1)) given=null
if [ -n "${CUDA_VISIBLE_DEVICES+set}" ]; then
    given=$(($(printf '%s\n' "$gpus" | wc -l) - 1))
    # A launcher may show each rank only its own GPU.
    [ "$given" != 1 ] || own=1
fi
gpu=$(printf '%s\n' "$gpus" | sed -n "${own}s/^GPU .*(UUID: \\([A-Za-z0-9-]\\{1,64\\}\\)).*/\"\\1\"/p")
gpu=${gpu:-null}
printf 'ACCEPT {"fact":"rank","check":"connectivity","rank":%d,"host":"%s","value":{"host":"%s","hostname":"%s","rank":%d,"localRank":%d,"gpu":%s,"given":%s,"size":%d,"mpi4py":%s}}\n' \
    "${OMPI_COMM_WORLD_RANK:-0}" "$ACCEPT_HOST" "$ACCEPT_HOST" "$(hostname)" "${OMPI_COMM_WORLD_RANK:-0}" "$local_rank" \
    "$gpu" "$given" "${OMPI_COMM_WORLD_SIZE:-1}" "$mpi4py"
# The network of the node's ranks, and what chose it: printed once per node.
if [ "${OMPI_COMM_WORLD_LOCAL_RANK:-0}" = 0 ]; then
    rdma_by='the settings'
    case " ${ACCEPT_CHOSEN:-} " in *' NCCL_IB_HCA '*) rdma_by='the fastest that are up' ;; esac
    case " ${ACCEPT_CHOSEN:-} " in *' NCCL_SOCKET_IFNAME '*) by=${ACCEPT_INTERFACE_BY:-} ;; *) by='the settings' ;; esac
    printf 'ACCEPT {"fact":"network","check":"connectivity","host":"%s","value":{"interface":"%s","interfaceBy":"%s","rdma":"%s","rdmaBy":"%s"}}\n' \
        "$ACCEPT_HOST" "${NCCL_SOCKET_IFNAME#=}" "$by" "${NCCL_IB_HCA:-}" "${NCCL_IB_HCA:+$rdma_by}"
fi
# Open MPI 5.0 sometimes hangs at the end of runs whose ranks live for less than 0.1 s.
sleep 0.3
