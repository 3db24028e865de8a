#!/bin/sh
# pod_entrypoint.sh: the command of every pod of a run, in the folder to which the archive was unpacked. It starts
# the run's own sshd, and the coordinator in the pod of index 0, or in a pod of its own (ACCEPT_ROLE=coordinator; then
# the others have ACCEPT_ROLE=host). Then it waits for a word on the pipe `events`:
#   over       the run has ended
#   stop       end the run now, as a cancel does, but keep its evidence
#   ending     the pod is being deleted
#   expired    the pod's time is up
#   unwanted   the coordinator never connected, or has been gone for minutes
# The exit status of the coordinator's pod is that of the verdict. On other pods it is 0 after `over`, 20 if the image
# lacks something, 21 if the coordinator never connected, 22 if it is gone, and 23 if the time is up.
# The chart sets ACCEPT_ATTEMPT, _NODES, _HOST_PREFIX, _ADDRESSES, _NODE, _SSH_PORT, _START_SECONDS,
# _LIFE_SECONDS, _HOLD_SECONDS, _DEBUG_HOLD, _DEBUG_HOLD_ALWAYS, _RESULTS, _BUCKET (the URL of a bucket that _RESULTS is
# mounted from), _IMAGE, _EDITED (JSON), _RESUMED if the workstation sends finished steps of an earlier attempt,
# _LIBRARY_PATH (folders of libraries, before those of the image), _LOG_EVENTS if the workstation reads the progress from the log, and _ROLE if the coordinator has a pod of its own;
# Kubernetes sets JOB_COMPLETION_INDEX.
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
# The machine's folders come before those of the image, which a variable of the pod would replace.
if [ -n "${ACCEPT_LIBRARY_PATH:-}" ]; then
    export LD_LIBRARY_PATH="$ACCEPT_LIBRARY_PATH${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
fi
umask 077
chmod 700 . 2>/dev/null
# shellcheck source=sshd.sh
. ./sshd.sh
# shellcheck source=unpack.sh
. ./unpack.sh
index=${JOB_COMPLETION_INDEX:?is set for pods of an Indexed Job}
role=${ACCEPT_ROLE:-}
case $role$index in
    0 | coordinator*) coordinates=yes ;;
    *) coordinates='' ;;
esac
pod=$ACCEPT_HOST_PREFIX$index

# say WORDS: prints a line for `kubectl logs`, and keeps it for the evidence.
say() {
    printf '%s\n' "$*"
    printf '%s\n' "$*" >> pod.log
}
# report FILE: shows a file as the last message of this pod, as in `kubectl describe pod`.
report() {
    log=${ACCEPT_TERMINATION_LOG:-/dev/termination-log}
    [ ! -w "$log" ] || cat "$1" > "$log"
}
# leave CODE WORDS: ends the pod with CODE; that of the coordinator with 5, because the run was interrupted.
leave() {
    code=$1
    shift
    [ -z "$coordinates" ] || code=5
    say "$*"
    printf '%s\n' "$*" > reason_to_leave
    report reason_to_leave
    exit "$code"
}

if [ "$role" = coordinator ]; then
    pod=coordinator index=coordinator
    say "accept: coordinator of $ACCEPT_NODES hosts, on node ${ACCEPT_NODE:-unknown}"
else
    say "accept: $pod on node ${ACCEPT_NODE:-unknown}, index $index of $ACCEPT_NODES"
fi
save_environment
mkdir -p tmp || leave 20 "cannot write to $ACCEPT_DIR: is its disk full?"
# shellcheck source=/dev/null
. ./env.sh
if [ "$role" != coordinator ] && [ -n "$ACCEPT_NCCL_SCRIPT" ] && [ ! -r "$ACCEPT_NCCL_SCRIPT" ]; then
    leave 20 "node ${ACCEPT_NODE:-unknown} lacks $ACCEPT_NCCL_SCRIPT of NCCL's plugin: does the DaemonSet that installs it run there? Without the plugin: nccl.profile sockets in the site file"
fi

missing=''
sshd=$(find_sshd) || missing="$missing sshd"
for tool in ssh ssh-keygen mpirun sha256sum; do
    command -v "$tool" >/dev/null || missing="$missing $tool"
done
unpack_programs
case $? in
    0) ;;
    2) missing="$missing bzip2" ;;
    *) leave 20 "cannot unpack the programs into $ACCEPT_DIR: is its disk full?" ;;
esac
python=''
if [ -r programs/python.sh ]; then
    # shellcheck source=programs/python.sh
    . programs/python.sh
fi
# Only index 0 needs Python. Some images have one without most of the standard library.
if [ -n "$coordinates" ]; then
    if [ -z "$python" ]; then
        missing="$missing python-3.10-or-newer"
    elif ! "$python" -c 'import asyncio, json, tarfile, zlib' 2>/dev/null; then
        missing="$missing complete-${python##*/}"
    fi
fi
image="the image${ACCEPT_IMAGE:+ $ACCEPT_IMAGE}"
[ -z "$missing" ] || say "$image lacks:$missing"
case " $missing " in
    *" sshd "* | *" ssh "* | *" ssh-keygen "* | *" bzip2 "* | *" python-"* | *" complete-"*)
        leave 20 "every run needs:$missing; add them, as the target ngc of docker/Dockerfile does (docs/kubernetes-rights.md, section Image), or name another image" ;;
esac

secret=${ACCEPT_KEY:-/accept/key/ssh-privatekey}
if ! cp "$secret" key || ! chmod 600 key; then
    leave 20 "the run's key cannot be read: $secret"
fi
! reason=$(login_problem) || leave 20 "the image: $reason"
public=$(ssh-keygen -y -f key) || leave 20 "ssh-keygen cannot read the run's key"
printf 'restrict,pty %s\n' "$public" > authorized_keys
printf 'accept-run %s\n' "$public" > known_hosts
# Helm makes keys in PEM. With these, ssh-keygen signs only if the public half is beside the key.
printf '%s\n' "$public" > key.pub
printf '%s\n' "$ACCEPT_ATTEMPT" > run
# Reports use the name of the node. By the pod's own name the coordinator checks that it reached the right pod.
printf '%s\n' "${ACCEPT_NODE:-$pod}" > host
printf '%s\n' "$pod" > pod
echo "$((ACCEPT_NODES + 16))" > logins
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

# stay: waits until the pod is deleted. The coordinator asks for that in the file `stay`: see chart/templates/_job.tpl.
stay() {
    n=$ACCEPT_LIFE_SECONDS
    until [ -e ending ] || [ "$n" -le 0 ]; do
        n=$((n - 1))
        sleep 1
    done
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

# register: announces this pod to the coordinator's, which appends the line to `registrations`; tries again until that
# works. The coordinator's Service has the name of the attempt and an address of its own. It exists before all pods, so
# that the cluster's DNS never caches that it is unknown. At most 100 pods log in per second: a thousand at once would
# keep each other from completing their logins in time.
register() {
    line="$ACCEPT_ATTEMPT $index ${ACCEPT_NODE:-unknown} $ACCEPT_ADDRESSES"
    sed "s|@FOLDER@|$ACCEPT_DIR|" ssh_config.in > ssh_config
    turn=$((index / 100)).$(printf '%02d' "$((index % 100))")
    pause=0.2 tries=25
    sleep "$turn"
    # shellcheck disable=SC2016 # expanded in the coordinator's pod
    until printf '%s\n' "$line" | ssh -F ssh_config -o ControlPath=none -p "$ACCEPT_SSH_PORT" \
        "$ACCEPT_ATTEMPT" 'read -r line && printf "%s\n" "$line ${SSH_CONNECTION%% *}" >> "$ACCEPT_DIR/registrations"'; do
        sleep "$pause"
        sleep "$turn"
        # Index 0 mostly starts within seconds of the others.
        [ "$((tries -= 1))" -gt 0 ] || pause=2
    done
}

# say_absent: reports the optional tools that the image lacks in one line, with the consequence; on index 0 and the
# coordinator only, because the others have the same image. Python looks up its packages in one process and does not
# import them, because importing torch takes seconds.
say_absent() {
    case $index in 0 | coordinator) ;; *) return ;; esac
    absent=" $("${python:-false}" -c 'from importlib.util import find_spec
print(*(name for name in ("torch", "mpi4py", "obstore") if not find_spec(name)))' 2>/dev/null) "
    without=''
    lacking() { without="$without${without:+; }$1 ($2)"; }
    case $absent in *" torch "*) lacking torch 'checks that need it fail' ;; esac
    case $absent in *" mpi4py "*) lacking mpi4py 'the latency between hosts is not measured' ;; esac
    # nccl-tests measures GPUs only; the collectives step looks for it in the same folders.
    if [ -e "${ACCEPT_DEV:-/dev}/nvidiactl" ]; then
        (
            PATH=$PATH${ACCEPT_NCCL_TESTS:+:$ACCEPT_NCCL_TESTS}:/third_party/nccl-tests-mpi/build:/third_party/nccl-tests/build:/opt/nccl-tests/build
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
}

# library NAME: prints the path of the library that programs load.
library() {
    rest=${LD_LIBRARY_PATH:-}:
    while [ -n "$rest" ]; do
        folder=${rest%%:*} rest=${rest#*:}
        [ -z "$folder" ] || [ ! -e "$folder/$1" ] || { echo "$folder/$1" && return; }
    done
    ldconfig -p 2>/dev/null | awk -v name="$1" '$1 == name { print $NF; exit }'
}

# say_versions: reports the image, the driver, and the NCCL that nccl-tests load, with its place: the image's own, or that
# of a plugin. torch may bring another NCCL, which its steps report. It sets `versions` for the coordinator, as JSON.
say_versions() {
    versions=''
    say "image: ${ACCEPT_IMAGE:-unknown}"
    driver=$(sed -n 's/^NVRM version:.*  *\([0-9][0-9]*\.[0-9.]*\) .*/\1/p' "${ACCEPT_PROC:-/proc}/driver/nvidia/version" 2>/dev/null)
    [ -n "$driver" ] || return
    nccl=$(library libnccl.so.2)
    # NCCL contains its version and that of the CUDA that it was built with.
    version=$(grep -aom1 'NCCL version [0-9][0-9.]*+cuda[0-9][0-9.]*' "$nccl" 2>/dev/null | sed 's/.* //;q')
    cuda=${version##*+cuda} version=${version%%+*}
    [ -n "$version" ] || version=$(readlink -f "$nccl" 2>/dev/null | sed -n 's/.*libnccl\.so\.//p')
    libcuda=$(readlink -f "$(library libcuda.so.1)" 2>/dev/null | sed -n 's/.*libcuda\.so\.//p')
    say "driver $driver; NCCL ${version:-of an unknown version}${cuda:+ with CUDA $cuda}${nccl:+ from $nccl}${ACCEPT_NCCL_SCRIPT:+; plugin: $ACCEPT_NCCL_SCRIPT}"
    versions=$(printf '"%s":"%s",' driver "$driver" NCCL "$version" CUDA "$cuda" libcuda "$libcuda" | tr -cd 'a-zA-Z0-9.:,"')
}

# upload FOLDER OPTIONS...: uploads to the run's place in the results bucket or folder; fails if none is set.
upload() {
    [ -n "$ACCEPT_RESULTS" ] && [ -n "$python" ] || return 1
    folder=$1
    shift
    "$python" programs/upload.py "$folder" "$ACCEPT_RESULTS" --attempt "$ACCEPT_ATTEMPT" "$@"
}

if [ -z "$coordinates" ]; then
    # The braces matter: a function that is redirected by itself would keep the old output open.
    { register; } >/dev/null 2>register.log &
    registrar=$!
fi

say_absent

if [ -z "$coordinates" ]; then
    { watch_coordinator; } >/dev/null 2>&1 &
    watcher=$!
    next
    # KILL, because TERM may be lost: a new child still has the traps of its parent.
    kill -KILL "$watcher" "$registrar" 2>/dev/null
    end_timer
    case $event in
        over) code=0 words='the run is over' ;;
        unwanted)
            code=$(cat reason)
            words='the coordinator has been gone for minutes'
            [ "$code" != 21 ] || words="no coordinator came within $((2 * ACCEPT_START_SECONDS)) s" ;;
        *) code=23 words="ended before the run was over ($event)" ;;
    esac
    tail -n 1 register.log | sed 's/^/register: /' >> pod.log
    sed 's/^/sshd: /' sshd.log | tail -n 20 >> pod.log
    /bin/sh ./kill.sh "ACCEPT_RUN=$ACCEPT_ATTEMPT" >/dev/null
    say "$words"
    # Without a bucket, the coordinator copies the records of each finished step to one of the other pods.
    [ "$code" != 22 ] || cat packed-so-far 2>/dev/null
    mkdir -p pods && cp pod.log "pods/$index.log" &&
        upload "pods/$index.log" --partial --under pods --seconds 30
    # This comes last: the coordinator waits until this sshd is gone, and when it ends, this pod may end too.
    kill "$daemon" 2>/dev/null
    [ ! -e stay ] || stay
    exit "$code"
fi

# From here on: the coordinator's pod.
say_versions
[ -n "${ACCEPT_LOG_EVENTS:-}" ] || export ACCEPT_PROGRESS="$ACCEPT_DIR/progress.jsonl"
# receive_finished: waits for the finished steps of an earlier attempt, which the workstation sends. It fails if
# nothing arrives for 120 s.
receive_finished() {
    n=0 size=''
    until [ -e earlier.tar.bz2 ]; do
        now=$(wc -c 2>/dev/null < earlier.part)
        [ "$now" = "$size" ] || n=0 size=$now
        [ "$((n += 1))" -le "${ACCEPT_RESUME_SECONDS:-120}" ] && [ ! -e ending ] || return 1
        sleep 1
    done
    unpack earlier.tar.bz2
}
earlier=''
if [ -n "${ACCEPT_RESUMED:-}" ]; then
    say 'waiting for the finished steps of the earlier attempt'
    if receive_finished; then
        earlier=$ACCEPT_DIR/earlier
    else
        say 'the workstation did not send the finished steps: every step runs'
    fi
fi
{
    printf '{"attempt":"%s","startSeconds":%s,"register":true,' "$ACCEPT_ATTEMPT" "$ACCEPT_START_SECONDS"
    printf '"results":"%s",' "$(printf '%s' "$ACCEPT_RESULTS" | sed 's/[\\"]/\\&/g')"
    printf '"bucket":"%s","earlier":"%s",' "$(printf '%s' "${ACCEPT_BUCKET:-}" | sed 's/[\\"]/\\&/g')" "$earlier"
    printf '"keptSeconds":%s,' "${ACCEPT_HOLD_SECONDS:-null}"
    printf '"holdSeconds":%s,"holdAlways":%s,' "${ACCEPT_DEBUG_HOLD:-null}" "${ACCEPT_DEBUG_HOLD_ALWAYS:-null}"
    printf '"deadlineSeconds":%s,"collectives":%s,' "${ACCEPT_DEADLINE:-null}" "${ACCEPT_COLLECTIVES:-null}"
    printf '"versions":{%s},"edited":%s,"hosts":[' "${versions%,}" "${ACCEPT_EDITED:-[]}"
    n=0
    while [ "$n" -lt "$ACCEPT_NODES" ]; do
        [ "$n" = 0 ] || printf ','
        name=$ACCEPT_HOST_PREFIX$n local=false
        [ -n "$role" ] || [ "$n" != 0 ] || local=true
        printf '{"name":"%s","port":%s,"local":%s}' "$name" "$ACCEPT_SSH_PORT" "$local"
        n=$((n + 1))
    done
    printf ']}\n'
} > hosts.json
# `helm rollback`, and a GitOps controller that restores a removed run, start an attempt again.
if upload . --has-ended --seconds 30; then
    leave 5 "$ACCEPT_ATTEMPT has already run, and its evidence is in ${ACCEPT_RESULTS%/}/runs/$ACCEPT_ATTEMPT: give another attempt"
fi
mkfifo console.pipe
tee console.log < console.pipe &
console=$!
/bin/sh ./coordinate.sh "$python" console.pipe &
next
if [ "$event" != over ] && [ -s coordinator.pid ] && [ ! -e status ]; then
    say "the run ends early ($event)"
    # The coordinator reports it. Without a reason, `accept cancel` ended the run.
    case $event in
        ending) echo 'the pod of the coordinator was deleted' > interruption ;;
        expired) echo "the time of the coordinator's pod is up" > interruption ;;
    esac
    stop_coordinator
fi
wait "$console"
end_timer
kill "$daemon" 2>/dev/null
/bin/sh ./kill.sh "ACCEPT_RUN=$ACCEPT_ATTEMPT" >/dev/null
code=$(cat status 2>/dev/null)
# Any other status means that the coordinator was interrupted.
case $code in 0 | 3 | 5 | 6 | 7) ;; *) code=5 ;; esac
# Before a hold the coordinator has sent the evidence, with the log up to there.
[ -e evidence/console.log ] || cp console.log evidence/ 2>/dev/null
[ ! -s summary ] || report summary
mkdir -p evidence/pods && cp pod.log "evidence/pods/$index.log"
# finish: repeats the verdict as the last line, for those who read only the end of the log, and ends the pod.
finish() {
    head -n 1 summary 2>/dev/null
    exit "$code"
}
if upload evidence --seconds "${ACCEPT_SEND_SECONDS:-300}"; then
    place=${ACCEPT_BUCKET:-$ACCEPT_RESULTS}
    say "evidence: ${place%/}/runs/$ACCEPT_ATTEMPT"
    # The workstation can reach a bucket. It often cannot reach a folder of the pods; then it has only this log, which
    # always contains records of up to 1 MiB.
    case $place in /* | file://*) folder=yes ;; *) folder='' ;; esac
    if [ -z "$folder" ] || [ "$(wc -c < evidence/records.jsonl)" -le 1048576 ]; then
        finish
    fi
else
    # If there is a bucket, the coordinator does not print the packed records but writes them to this file.
    cat packed 2>/dev/null
fi
if ! tar -cf evidence.tar.new evidence || ! mv evidence.tar.new evidence.tar; then
    say "the evidence cannot be packed: is the disk full? Plan, records and verdict are in this log"
    finish
fi
[ "$ACCEPT_HOLD_SECONDS" = 0 ] || say "evidence is kept here for $ACCEPT_HOLD_SECONDS s: accept collect fetches it, and ends the wait"
head -n 1 summary 2>/dev/null
n=${ACCEPT_HOLD_SECONDS%.*}
until [ -e collected ] || [ -e ending ] || [ "$n" -le 0 ]; do
    n=$((n - 1))
    sleep 1
done
exit "$code"
