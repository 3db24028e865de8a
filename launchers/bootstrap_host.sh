#!/bin/sh
# bootstrap_host.sh SECONDS KEEP [gpus]: prepare this host for a run over ssh.
# It runs in the unpacked run folder. It starts a watchdog, which starts a private sshd on a free port and
# removes everything after at most SECONDS. With the word gpus, it fails if neither the PCI bus nor the
# driver shows an NVIDIA GPU. It prints lines "KEY VALUE" for the workstation. If the run has a container, this script
# starts it and runs again inside it.
ACCEPT_DIR=$(pwd)
umask 077
fail() {
    printf 'problem %s %s\n' "$1" "$2"
    [ ! -p events ] || echo remove 1<>events
    cd / && rm -rf "$ACCEPT_DIR"
    exit 1
}
print_addresses() {
    # SSH_CONNECTION: client address, client port, server address, server port.
    # shellcheck disable=SC2086 # four words
    set -- ${SSH_CONNECTION:-}
    [ -z "${3:-}" ] || printf 'address %s\n' "$3"
    for address in $(hostname -I 2>/dev/null); do
        printf 'address %s\n' "$address"
    done
}
# shellcheck source=sshd.sh
. ./sshd.sh
if [ -e container.env ]; then
    # shellcheck source=/dev/null
    . ./container.env
    # shellcheck source=container.sh
    . ./container.sh
fi
if [ -n "${ACCEPT_IN_CONTAINER:-}" ]; then
    enter_container || fail "$cause" "$reason"
elif [ -e container.env ]; then
    start_container "$@" || fail "$cause" "$reason"
    print_addresses
    cat container.ready
    grep -qx ready container.ready || { cd / && rm -rf "$ACCEPT_DIR" && exit 1; }
    exit
fi
# shellcheck source=gpus.sh
. ./gpus.sh
if [ "${3:-}" = gpus ] && [ "$(count_pci_gpus)" = 0 ] && [ -z "$(list_all_gpus)" ]; then
    fail gpu-missing "the host shows no NVIDIA GPU"
fi
# sshd starts every command with the login shell of the account. A job of Slurm does not need one.
shell=$(getent passwd "$(id -u)" 2>/dev/null | cut -d : -f 7)
case $shell in
    */nologin | */false) fail launch-failed "the login shell of this account, $shell, runs no commands" ;;
esac
for tool in mkfifo od setsid; do
    command -v "$tool" >/dev/null || fail tool-missing "no $tool"
done
# env.sh may select the Python that unpacks.
error=$(
    # shellcheck source=/dev/null
    . ./env.sh
    # shellcheck source=unpack.sh
    . ./unpack.sh
    unpack_programs 2>&1
)
case $? in
    0) ;;
    2) fail tool-missing "cannot unpack the programs: neither bzip2 nor a Python with the module bz2 is installed" ;;
    *)
        case $error in *"o space left"*) cause=disk-full error='No space left on device' ;; *) cause=launch-failed ;; esac
        fail "$cause" "cannot unpack the programs into $ACCEPT_DIR: $(printf '%s' "$error" | tail -n 1)" ;;
esac
sshd=$(find_sshd) || fail tool-missing "no sshd"
write_sshd_config "$sshd" || fail disk-full "cannot write to $ACCEPT_DIR"
mkdir tmp || fail disk-full "cannot write to $ACCEPT_DIR"
mkfifo events || fail disk-full "cannot write to $ACCEPT_DIR"
# manage.sh recognizes the watchdog and its children by ACCEPT_GUARD.
ACCEPT_GUARD=$ACCEPT_DIR setsid /bin/sh ./watchdog.sh "$1" "$2" "$sshd" </dev/null >watchdog.log 2>&1 &
tries=1200
until [ -s port ] || [ "$tries" = 0 ]; do
    tries=$((tries - 1))
    sleep 0.05
done
[ -s port ] || fail launch-failed "the run's own sshd did not start: $(tail -n 1 sshd.log 2>/dev/null)"
printf 'port %s\n' "$(cat port)"
printf 'hostname %s\n' "$(hostname)"
print_addresses
nvidia-smi --query-compute-apps=gpu_uuid,pid,process_name,used_memory --format=csv,noheader 2>/dev/null |
    grep -E '^(GPU|MIG)-' | head -n 32 | sed 's/^/busy /'
# shellcheck source=/dev/null
. ./env.sh
printf 'mpirun %s\n' "$(mpirun --version 2>/dev/null | head -n 1)"
printf 'python %s\n' "$("$ACCEPT_PYTHON" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)"
echo ready
