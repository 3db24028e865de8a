#!/bin/sh
# pod_entrypoint.sh: the command of every pod of a run, in the folder to which the archive was unpacked. It starts
# the run's own sshd, and the coordinator on index 0. Then it waits for a word on the pipe `events`:
#   over       the run has ended
#   stop       end the run now, as a cancel does, but keep its evidence
#   ending     the pod is being deleted
#   expired    the pod's time is up
#   unwanted   the coordinator never connected, or has been gone for minutes
# The exit status on index 0 is that of the verdict. On other pods it is 0 after `over`, 20 if the image lacks
# something, 21 if the coordinator never connected, 22 if it is gone, and 23 if the time is up.
# The chart sets ACCEPT_ATTEMPT, _NODES, _HOST_PREFIX, _SUBDOMAIN, _NAMESPACE, _NODE, _SSH_PORT,
# _START_SECONDS, _LIFE_SECONDS, _HOLD_SECONDS, _RESULTS and _IMAGE; Kubernetes JOB_COMPLETION_INDEX.
# The first process of a pod becomes the parent of all orphans. A shell reaps dead children only while it waits.
# So the first process only waits, forwards signals, and passes on the exit status.
if [ "$$" = 1 ]; then
    /bin/sh "$0" &
    entry=$!
    trap 'kill -TERM "$entry" 2>/dev/null' TERM INT
    while :; do
        wait "$entry"
        code=$?
        kill -0 "$entry" 2>/dev/null || exit "$code"
    done
fi
ACCEPT_DIR=$(cd "$(dirname "$0")" && pwd)
export ACCEPT_DIR
cd "$ACCEPT_DIR" || exit 20
umask 077
chmod 700 . 2>/dev/null
# shellcheck source=sshd.sh
. ./sshd.sh
# shellcheck source=unpack.sh
. ./unpack.sh
index=${JOB_COMPLETION_INDEX:?is set for pods of an Indexed Job}
pod=$ACCEPT_HOST_PREFIX$index

# say WORDS: prints a line for `kubectl logs`, and keeps it for the evidence.
say() {
    printf '%s\n' "$*"
    printf '%s\n' "$*" >> pod.log
}
# leave CODE WORDS: ends the pod with CODE; on index 0 with 5, because the run was interrupted.
leave() {
    code=$1
    shift
    [ "$index" != 0 ] || code=5
    say "$*"
    exit "$code"
}

say "accept: $pod on node ${ACCEPT_NODE:-unknown}, index $index of $ACCEPT_NODES"
# sshd starts commands with an empty environment, so the container's is saved for them.
(
    for name in $(env | sed -n 's/^\([A-Za-z_][A-Za-z_0-9]*\)=.*/\1/p'); do
        case $name in
            ACCEPT_* | KUBERNETES_* | JOB_COMPLETION_INDEX | HOME | PWD | OLDPWD | SHLVL | TERM | _) unset "$name" ;;
        esac
    done
    export -p
) > host.env
mkdir -p tmp || leave 20 "cannot write to $ACCEPT_DIR: is its disk full?"
# shellcheck source=/dev/null
. ./env.sh
python=$(command -v "$ACCEPT_PYTHON")

missing=''
sshd=$(find_sshd) || missing="$missing sshd"
for tool in ssh ssh-keygen mpirun sha256sum; do
    command -v "$tool" >/dev/null || missing="$missing $tool"
done
unpack programs.tar.bz2
case $? in
    0) ;;
    2) missing="$missing bzip2" ;;
    *) leave 20 "cannot unpack the programs into $ACCEPT_DIR: is its disk full?" ;;
esac
# Some images have a Python without most of the standard library.
[ "$index" != 0 ] || "${python:-false}" -c 'import asyncio, json, tarfile, zlib' 2>/dev/null ||
    missing="$missing a-whole-$ACCEPT_PYTHON"
image="the image${ACCEPT_IMAGE:+ $ACCEPT_IMAGE}"
[ -z "$missing" ] || say "$image lacks:$missing"
case " $missing " in
    *" sshd "* | *" ssh "* | *" ssh-keygen "* | *" bzip2 "* | *" a-whole-"*)
        leave 20 "without these no run is possible: build them into the image (docs/kubernetes.md, under Image), or name another one" ;;
esac

# Optional tools that are missing are reported in one line, with the consequence. Python looks up its packages in one
# process and does not import them, because importing torch takes seconds.
absent=" $("${python:-false}" -c 'from importlib.util import find_spec
print(*(name for name in ("torch", "mpi4py", "obstore") if not find_spec(name)))' 2>/dev/null) "
without=''
lacking() { without="$without${without:+; }$1 ($2)"; }
case $absent in *" torch "*) lacking torch 'checks that need it fail' ;; esac
case $absent in *" mpi4py "*) lacking mpi4py 'the latency between hosts is not measured' ;; esac
# nccl-tests measures GPUs only; the collectives step looks for it in the same folders.
if [ -e "${ACCEPT_DEV:-/dev}/nvidiactl" ]; then
    (
        PATH=$PATH${ACCEPT_NCCL_TESTS:+:$ACCEPT_NCCL_TESTS}:/third_party/nccl-tests/build:/opt/nccl-tests/build
        command -v all_reduce_perf || command -v all_reduce_perf_mpi
    ) >/dev/null || lacking nccl-tests 'torch measures collectives in their place'
fi
case "$absent $ACCEPT_RESULTS" in
    *" obstore "*" gs://"*) command -v gcloud >/dev/null || lacking obstore 'nor gcloud: no evidence is sent' ;;
    *" obstore "*" s3://"*) command -v aws >/dev/null || lacking obstore 'nor aws: no evidence is sent' ;;
    *" obstore "*" az://"*) lacking obstore 'no evidence is sent' ;;
esac
for tool in ip getent; do
    command -v "$tool" >/dev/null || lacking "$tool" 'MPI chooses the interface between nodes by itself'
done
[ -z "$without" ] || say "$image has no: $without"

secret=${ACCEPT_KEY:-/accept/key/ssh-privatekey}
if ! cp "$secret" key || ! chmod 600 key; then
    leave 20 "the run's key cannot be read: $secret"
fi
id -un >/dev/null 2>&1 || leave 20 "the user id $(id -u) has no name in the image (/etc/passwd), and ssh needs one"
public=$(ssh-keygen -y -f key) || leave 20 "the run's key is none that ssh-keygen reads"
case $(sed -n "s/^$(id -un):\([^:]*\):.*/\1/p" /etc/shadow 2>/dev/null) in
    '!'*) leave 20 "the account $(id -un) is locked in the image (/etc/shadow), so sshd lets nobody in: usermod -p '*' $(id -un)" ;;
esac
printf 'restrict,pty %s\n' "$public" > authorized_keys
printf 'accept-run %s\n' "$public" > known_hosts
printf '%s\n' "$ACCEPT_ATTEMPT" > run
# Reports use the name of the node. By the pod's own name the coordinator checks that it reached the right pod.
printf '%s\n' "${ACCEPT_NODE:-$pod}" > host
printf '%s\n' "$pod" > pod
write_sshd_config "$sshd" || leave 20 "cannot write to $ACCEPT_DIR: is its disk full?"
# sshd needs this folder for privilege separation; the package's start script, which does not run here, makes it.
[ "$(id -u)" != 0 ] || mkdir -p /run/sshd
rm -f events
mkfifo events
exec 3<>events
trap ': > ending; echo ending > events' TERM INT
listen "$sshd" "$ACCEPT_SSH_PORT" || leave 20 "no sshd on port $ACCEPT_SSH_PORT: $(tail -n 1 sshd.log)"
start_timer "$ACCEPT_LIFE_SECONDS"

# visited: succeeds if a connection to the run's sshd is open; the coordinator keeps one to each host.
visited() {
    grep -lqs "^PPid:[[:space:]]*$daemon\$" /proc/[0-9]*/status
}

# watch_coordinator: reports a coordinator that never connected, or is gone. It sends nothing over the network,
# because a thousand pods that ask index 0 would put load on the host that is being measured.
watch_coordinator() {
    seen='' idle=0 pause=${ACCEPT_LOOK_SECONDS:-30}
    while sleep "$pause"; do
        if visited; then
            seen=yes idle=0
            continue
        fi
        idle=$((idle + pause))
        if [ -n "$seen" ] && [ "$idle" -ge 300 ]; then
            echo 22 > reason
            echo unwanted > events
        elif [ -z "$seen" ] && [ "$idle" -ge "$((2 * ACCEPT_START_SECONDS))" ]; then
            # Index 0 may start that much later, and then waits as long for the last of the others.
            echo 21 > reason
            echo unwanted > events
        fi
    done
}

# upload FOLDER OPTIONS...: uploads to the run's place in the results bucket or folder; fails if none is set.
upload() {
    [ -n "$ACCEPT_RESULTS" ] && [ -n "$python" ] || return 1
    folder=$1
    shift
    "$python" programs/upload.py "$folder" "$ACCEPT_RESULTS" --attempt "$ACCEPT_ATTEMPT" "$@"
}

if [ "$index" != 0 ]; then
    # The braces matter: a function that is redirected by itself would keep the old output open.
    { watch_coordinator; } >/dev/null 2>&1 &
    watcher=$!
    next
    # KILL, because TERM may be lost: a new child still has the traps of its parent.
    kill -KILL "$watcher" 2>/dev/null
    end_timer
    case $event in
        over) code=0 words='the run is over' ;;
        unwanted)
            code=$(cat reason)
            words='the coordinator has been gone for minutes'
            [ "$code" != 21 ] || words="no coordinator came within $((2 * ACCEPT_START_SECONDS)) s" ;;
        *) code=23 words="ended before the run was over ($event)" ;;
    esac
    sed 's/^/sshd: /' sshd.log | tail -n 20 >> pod.log
    /bin/sh ./kill.sh "ACCEPT_RUN=$ACCEPT_ATTEMPT" >/dev/null
    say "$words"
    mkdir -p pods && cp pod.log "pods/$index.log" &&
        upload "pods/$index.log" --partial --under pods --seconds 30
    # This comes last: index 0 waits until this sshd is gone, and when index 0 ends, this pod may end too.
    kill "$daemon" 2>/dev/null
    exit "$code"
fi

# From here on: index 0. DNS records appear a moment after the pods. A name that is looked up before its record exists
# stays unknown while the cluster's DNS caches that answer, by default for half a minute. Hence the sleep below.
domain=$(sed -n "s/^search.*[[:space:]]\($ACCEPT_NAMESPACE\.svc\.[^[:space:]]*\).*/\1/p" /etc/resolv.conf | head -n 1)
domain=$ACCEPT_SUBDOMAIN.${domain:-$ACCEPT_NAMESPACE.svc}
{
    printf '{"attempt":"%s","startSeconds":%s,' "$ACCEPT_ATTEMPT" "$ACCEPT_START_SECONDS"
    printf '"results":"%s","hosts":[' "$(printf '%s' "$ACCEPT_RESULTS" | sed 's/[\\"]/\\&/g')"
    n=0
    while [ "$n" -lt "$ACCEPT_NODES" ]; do
        [ "$n" = 0 ] || printf ','
        name=$ACCEPT_HOST_PREFIX$n local=false
        [ "$n" != "$index" ] || local=true
        printf '{"name":"%s","addresses":["%s.%s"],"port":%s,"local":%s}' \
            "$name" "$name" "$domain" "$ACCEPT_SSH_PORT" "$local"
        n=$((n + 1))
    done
    printf ']}\n'
} > hosts.json
sleep 3
mkfifo console.pipe
tee console.log < console.pipe &
console=$!
/bin/sh ./coordinate.sh "$python" console.pipe &
next
if [ "$event" != over ] && [ -s coordinator.pid ] && [ ! -e status ]; then
    say "the run ends early ($event)"
    stop_coordinator
fi
wait "$console"
end_timer
kill "$daemon" 2>/dev/null
/bin/sh ./kill.sh "ACCEPT_RUN=$ACCEPT_ATTEMPT" >/dev/null
code=$(cat status 2>/dev/null)
# Any other status means that the coordinator was interrupted.
case $code in 0 | 3 | 5 | 6 | 7) ;; *) code=5 ;; esac
cp console.log evidence/ 2>/dev/null
mkdir -p evidence/pods && cp pod.log "evidence/pods/$index.log"
if upload evidence --seconds "${ACCEPT_SEND_SECONDS:-300}"; then
    say "evidence: ${ACCEPT_RESULTS%/}/runs/$ACCEPT_ATTEMPT"
    # The workstation often cannot reach a folder of the pods and has only this log, which holds the records if they
    # are less than 1 MiB when packed. A bucket it can reach.
    case $ACCEPT_RESULTS in /* | file://*) folder=yes ;; *) folder='' ;; esac
    if [ -z "$folder" ] || [ "$(wc -c < evidence/records.jsonl)" -le 1048576 ]; then
        exit "$code"
    fi
fi
if ! tar -cf evidence.tar.new evidence || ! mv evidence.tar.new evidence.tar; then
    say "the evidence cannot be packed: is the disk full? Plan, records and verdict are in this log"
    exit "$code"
fi
say "evidence is kept here for $ACCEPT_HOLD_SECONDS s: accept collect fetches it, and ends the wait"
n=${ACCEPT_HOLD_SECONDS%.*}
until [ -e collected ] || [ -e ending ] || [ "$n" -le 0 ]; do
    n=$((n - 1))
    sleep 1
done
exit "$code"
