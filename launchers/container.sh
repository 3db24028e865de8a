# shellcheck shell=sh
# Functions that run a command in the container of a run on a host, and prepare the container. The command lines of all
# runtimes are here, except that of Pyxis, which consists of options of srun. The file container.env of the run sets:
#   container_runtimes   the runtimes to look for, in this order
#   container_image      the image, as the user wrote it
#   container_mounts     SOURCE:TARGET or SOURCE:TARGET:ro, one per line
#   container_gpus       not empty if the container needs the host's NVIDIA GPUs

# Devices of the host for the container, if the host has them: RDMA, GPUDirect copies, NVLink domains, the kernel log.
container_devices='/dev/infiniband /dev/gdrdrv /dev/nvidia-caps-imex-channels /dev/kmsg'

# find_runtime: sets `runtime` to the first usable runtime.
find_runtime() {
    # shellcheck disable=SC2154 # container.env sets it
    for runtime in $container_runtimes; do
        command -v "$runtime" >/dev/null || continue
        # Its commands are useless without its daemon.
        [ "$runtime" != docker ] || docker info >/dev/null 2>&1 || continue
        return 0
    done
    return 1
}

# print_no_runtime: prints why find_runtime failed.
print_no_runtime() {
    case $container_runtimes in
        docker) echo 'docker is missing, its daemon does not answer, or this user may not use it' ;;
        *' '*) printf 'no container runtime that this user can use: looked for %s\n' "$container_runtimes" ;;
        *) printf 'the container runtime %s is missing\n' "$container_runtimes" ;;
    esac
}

# full_image: prints the image as the runtime takes it.
full_image() {
    # shellcheck disable=SC2154 # container.env sets it
    case $runtime:$container_image in
        apptainer:*://* | apptainer:/*) printf '%s\n' "$container_image" ;;
        apptainer:*) printf 'docker://%s\n' "$container_image" ;;
        *) printf '%s\n' "${container_image#docker://}" ;;
    esac
}

# image_state: prints `present`, `pullable`, `unknown`, or `missing` and why.
image_state() {
    image=$(full_image)
    case $runtime:$image in
        apptainer:/*) if [ -r "$image" ]; then echo present; else echo "missing $image is not readable"; fi ;;
        apptainer:*) echo unknown ;;
        *)
            if "$runtime" image inspect "$image" >/dev/null 2>&1; then
                echo present
            elif error=$("$runtime" manifest inspect "$image" 2>&1 >/dev/null </dev/null); then
                echo pullable
            else
                echo "missing $(printf '%s' "$error" | tail -n 1)"
            fi ;;
    esac
}

# mount_option SOURCE:TARGET[:ro|:rw]: sets `option` to the option that mounts a folder of the host. With this option,
# the runtime does not create a missing folder.
mount_option() {
    target=${1#*:}
    option=--mount=type=bind,source=${1%%:*},target=${target%:r?}
    case $runtime:$target in
        apptainer:*) option=--bind=$1 ;;
        *:ro) option=$option,readonly ;;
    esac
}

# in_container FOLDER WORD...: runs a command in the container, in FOLDER, which has the same path there. With an empty
# FOLDER, the container sees no host folders except container_mounts. The command shares network, process ids, shared
# memory and hostname with the host. So a process has the same id on the host, which can find and end it.
in_container() {
    folder=$1
    shift
    set -- "$(full_image)" "$@"
    # Runtimes without a daemon pass the limits on, so raise this one here. Only root can.
    # shellcheck disable=SC3045 # dash and bash have this option
    ulimit -l unlimited 2>/dev/null || :
    # A job of Slurm writes its evidence to this folder, which not every node may see.
    shared=$([ -z "$folder" ] || cat "$folder/shared" 2>/dev/null)
    [ -d "$shared" ] || shared=''
    # shellcheck disable=SC2154 # container.env sets it
    for mount in $container_mounts ${shared:+"$shared:$shared"} ${folder:+"$folder:$folder"}; do
        mount_option "$mount"
        set -- "$option" "$@"
    done
    case $runtime in
        apptainer)
            [ -z "$folder" ] || set -- "--pwd=$folder" "$@"
            # shellcheck disable=SC2154 # container.env sets it
            [ -z "$container_gpus" ] || set -- --nv "$@"
            # By default, Apptainer shares devices, network, process ids and shared memory.
            set -- exec --cleanenv --no-home --writable-tmpfs "$@" ;;
        *)
            [ -z "$folder" ] || set -- "--workdir=$folder" "$@"
            for device in $container_devices; do
                [ ! -e "$device" ] || set -- "--device=$device" "$@"
            done
            case $runtime:$container_gpus in
                *:) ;;
                docker:*) set -- --gpus=all "$@" ;;
                podman:*) set -- --device=nvidia.com/gpu=all "$@" ;;
            esac
            if [ "$runtime" = docker ]; then container_user "$folder"; else user=0:0; fi
            [ -z "$passwd" ] || set -- "--volume=$passwd:/etc/passwd:ro" "$@"
            [ "$runtime" != docker ] || set -- --ulimit=memlock=-1:-1 "$@"
            set -- --cap-add=IPC_LOCK --cap-add=SYS_NICE --cap-add=SYS_PTRACE --cap-add=SYSLOG "--user=$user" "$@"
            set -- --security-opt=label=disable --security-opt=seccomp=unconfined "$@"
            set -- run --rm --network=host --pid=host --ipc=host --uts=host --entrypoint= "$@" ;;
    esac
    "$runtime" "$@"
}

# container_user FOLDER: sets `user` to the user in a container of Docker, so that files and processes of the run belong
# to the user of this host. sshd needs a name and a shell for that user: `passwd` is a file with them, or empty.
passwd=''
container_user() {
    user=$(id -u):$(id -g)
    case $(docker info --format '{{.SecurityOptions}}' 2>/dev/null) in
        # root is this user there.
        *rootless*) user=0:0 ;;
    esac
    [ "$user" != 0:0 ] && [ -n "$1" ] || return 0
    passwd=$1/passwd
    printf 'root:x:0:0::/root:/bin/sh\n%s:x:%s:%s::%s:/bin/sh\n' \
        "$(id -un)" "$(id -u)" "$(id -g)" "$1" > "$passwd"
}

# enter_container: prepares this container for sshd, which needs the functions of sshd.sh. If the image lacks something
# that every run needs, it fails, and sets `cause` and `reason`.
enter_container() {
    save_environment
    # sshd needs this folder for privilege separation; the package's start script, which does not run here, makes it.
    [ "$(id -u)" != 0 ] || mkdir -p /run/sshd
    missing=''
    find_sshd >/dev/null || missing=' sshd'
    for tool in ssh setsid; do
        command -v "$tool" >/dev/null || missing="$missing $tool"
    done
    if [ -n "$missing" ]; then
        cause=tool-missing reason="the image $container_image lacks:$missing"
    elif problem=$(login_problem); then
        cause=launch-failed reason="the image $container_image: $problem"
    else
        return 0
    fi
    return 1
}

# start_container SECONDS KEEP [gpus]: starts the container on this host, which stays until the run has ended here, and
# waits until container_host.sh has written the file container.ready. If that fails, it sets `cause` and `reason`.
start_container() {
    if ! find_runtime; then
        cause=tool-missing reason=$(print_no_runtime)
        return 1
    fi
    # The container stays when this script, and the ssh that started it, have ended.
    (
        trap '' HUP
        in_container "$ACCEPT_DIR" /bin/sh ./container_host.sh "$@"
        # In the container, the folder is a mount. Only the host can remove it.
        cd / && rmdir "$ACCEPT_DIR" 2>/dev/null
    ) </dev/null >container.log 2>&1 &
    until [ -e container.ready ] || ! kill -0 "$!" 2>/dev/null; do sleep 0.1; done
    [ -e container.ready ] && return
    # shellcheck disable=SC2034 # bootstrap_host.sh reads both
    cause=launch-failed reason="$runtime cannot run the image $container_image: $(tail -n 1 container.log)"
    return 1
}
