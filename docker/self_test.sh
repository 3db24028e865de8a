#!/bin/sh
# self_test.sh [cpu | gpu | ngc]: run it in a container of the image. It starts the entry script as a pod of a run does, and logs in
# over ssh. With `gpu` and `ngc`, it also looks for nccl-tests. It needs the folder `launchers` beside its own folder, and no GPU.
set -u
launchers=$(cd "$(dirname "$0")/../launchers" && pwd) || exit 1
folder=$(mktemp -d) && cd "$folder" && cp -R "$launchers"/. . || exit 1
entry=''

# finish CODE WORDS: prints the log of the entry script after a failure, removes everything, and ends.
finish() {
    code=$1
    shift
    if [ -n "$entry" ]; then
        kill "$entry" 2>/dev/null
        wait "$entry"
    fi
    [ "$code" = 0 ] || cat "$folder"/entry.log "$folder"/sshd.log 2>/dev/null
    cd / && rm -rf "$folder"
    echo "self-test as $(id -un): $*"
    exit "$code"
}

# These files are rendered for each run; here the image's own tools are enough.
# shellcheck disable=SC2016 # the file itself expands them
printf '%s\n' '[ ! -r "$ACCEPT_DIR/host.env" ] || . "$ACCEPT_DIR/host.env"' \
    'ACCEPT_PYTHON=python3 ACCEPT_SHELL=/bin/sh ACCEPT_NCCL_SCRIPT="" ACCEPT_NCCL_TESTS=""' \
    'export ACCEPT_PYTHON ACCEPT_SHELL' > env.sh
: > settings.sh
python3 -c 'import tarfile
with tarfile.open("programs.tar.bz2", "w:bz2") as archive:
    archive.add("programs")
# The chart adds the bindings of NVML.
tarfile.open("bindings.tar.bz2", "w:bz2").close()' || finish 1 'python3 is missing, or lacks a part of its standard library'
ssh-keygen -q -t ecdsa -N '' -f pod-key || finish 1 'ssh-keygen failed'
port=$(python3 -c 'import socket
with socket.socket() as any: any.bind(("127.0.0.1", 0)); print(any.getsockname()[1])')

# Index 1, because index 0 starts a run. It waits for index 0, and ends with the signal. The end of an attempt kills what
# has its name, so each has its own.
JOB_COMPLETION_INDEX=1 ACCEPT_ATTEMPT="self-test-$$" ACCEPT_NODES=2 ACCEPT_HOST_PREFIX=self-test- \
    ACCEPT_ADDRESSES=127.0.0.1 ACCEPT_NODE=here ACCEPT_SSH_PORT="$port" ACCEPT_START_SECONDS=60 ACCEPT_LIFE_SECONDS=120 \
    ACCEPT_HOLD_SECONDS=0 ACCEPT_RESULTS='' ACCEPT_IMAGE='' ACCEPT_KEY="$folder/pod-key" \
    ACCEPT_TERMINATION_LOG="$folder/reason" /bin/sh ./pod_entrypoint.sh > entry.log 2>&1 &
entry=$!

# inside COMMAND: executes a command over ssh, as the first host of a run does.
inside() {
    ssh -F none -i pod-key -p "$port" -o BatchMode=yes -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null \
        -o LogLevel=ERROR 127.0.0.1 "$1"
}
tries=150
until inside true 2>/dev/null; do
    tries=$((tries - 1))
    if [ "$tries" = 0 ] || ! kill -0 "$entry" 2>/dev/null; then
        finish 1 'the entry script started no sshd, or no login is possible'
    fi
    sleep 0.2
done
root=''
[ "$(id -u)" != 0 ] || root=--allow-run-as-root
inside "mpirun $root --oversubscribe -np 2 true" || finish 1 'mpirun failed'
inside "python3 -c 'import mpi4py, torch'" || finish 1 'torch or mpi4py cannot be imported'
case ${1:-} in gpu | ngc)
    for program in all_reduce_perf all_gather_perf reduce_scatter_perf alltoall_perf sendrecv_perf; do
        # As a run finds them: some images build them with the suffix _mpi.
        libraries=$(inside "PATH=\$PATH:/opt/nccl-tests/build
            path=\$(command -v $program || command -v ${program}_mpi) && ldd \"\$path\"") ||
            finish 1 "nccl-tests lacks $program"
        # The runtime of the node adds the driver.
        lacking=$(printf '%s\n' "$libraries" | grep 'not found' | grep -v 'libcuda\.so\|libnvidia-ml\.so')
        [ -z "$lacking" ] || finish 1 "$program lacks libraries: $lacking"
    done ;;
esac
grep -E 'has no:|lacks:' entry.log
finish 0 passed
