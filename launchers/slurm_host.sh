#!/bin/sh
# slurm_host.sh SECONDS KEEP [gpus]: the task of a run on one node of a Slurm job: prepares the node like
# bootstrap_host.sh, and stays until the run has ended here, because Slurm ends all processes of a task that has ended.
# After TERM, by which Slurm announces KILL, it stays until the watchdog has cleaned up.
trap : TERM
ACCEPT_DIR=$(pwd)
umask 077
printf '%s\n' "$SLURMD_NODENAME" > host
# The switches above this node: "top.leaf1.n1" becomes "top/leaf1".
case ${SLURM_TOPOLOGY_ADDR:-} in
    *.*) printf 'place %s\n' "${SLURM_TOPOLOGY_ADDR%.*}" | tr . / ;;
esac
# Modules that the user has loaded, and what the site exports to tasks, which sshd does not pass to its sessions. A
# launch by srun needs the rest.
quoted() { printf '%s' "$1" | sed "s/'/'\\\\''/g"; }
{
    printf "PATH='%s'\n" "$(quoted "$PATH")"
    for name in LD_LIBRARY_PATH SLURM_CONF CUDA_VISIBLE_DEVICES; do
        eval "value=\${$name:-}"
        # shellcheck disable=SC2154 # set by the eval
        case $name:$value in
            # The GPUs of the job: without ConstrainDevices, those of other jobs are visible, too. A job that requested
            # none (`gres: none`) tests those that it can open, also on the first node, whose batch script has a list.
            CUDA_VISIBLE_DEVICES: | CUDA_VISIBLE_DEVICES:NoDevFiles | CUDA_VISIBLE_DEVICES:-*) printf 'unset %s\n' "$name" ;;
            *:) ;;
            *) printf "export %s='%s'\n" "$name" "$(quoted "$value")" ;;
        esac
    done
    printf 'ACCEPT_SLURM_JOB=%s\n' "$SLURM_JOB_ID"
} > host.env
# If Slurm kills this task with its srun, as on the loss of the first node, the watchdog may survive. Then the reader
# of this pipe, which only this process keeps open, makes it end the run here.
mkfifo alive
(setsid /bin/sh -c 'read -r _ < alive; [ ! -p events ] || echo stop 1<>events' </dev/null >/dev/null 2>&1 &)
exec 7> alive
# The watchdog keeps the writing end of this pipe open, so `cat` ends with it, and uses no CPU until then.
{ /bin/sh ./bootstrap_host.sh "$@" 9>&1 >&8 | cat; } 8>&1 7>&-
# It also ends with TERM, which does not always reach the watchdog.
[ ! -p events ] || echo stop 1<>events
guard=$(cut -d ' ' -f 1 guard.pid 2>/dev/null)
while [ -e "$ACCEPT_DIR/run" ] && [ -n "$guard" ] && kill -0 "$guard" 2>/dev/null; do sleep 0.2; done
if [ -e "$ACCEPT_DIR/run" ] && [ ! -e "$ACCEPT_DIR/first" ]; then
    # The watchdog was killed.
    cd "$ACCEPT_DIR" && /bin/sh ./kill.sh "ACCEPT_RUN=$(cat run)" "ACCEPT_DIR=$ACCEPT_DIR"
    cd / && rm -rf "$ACCEPT_DIR"
fi
