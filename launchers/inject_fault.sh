#!/bin/sh
# inject_fault.sh FAULT ...: what a drill does to a host as a whole, in the run's folder there. The coordinator
# calls it where the plan says so (`planted`), and nowhere else. It says `planted`, or why not.
#   full-disk RANKS          what ranks write here of their progress meets a full device
#   slow-link SECONDS PEER   what leaves by the interface towards PEER does so at RATE, for SECONDS at most
#   undo                     ends slow-link; says `undone`, or what is left
# Needs of slow-link: root, tc, CAP_NET_ADMIN, and an interface that nobody has shaped.
RATE=20mbit
ACCEPT_DIR=$(pwd)
export ACCEPT_DIR
# shellcheck source=/dev/null
. ./env.sh
PATH=$PATH:/usr/sbin:/sbin
# shellcheck source=interface.sh
. ./interface.sh

refuse() {
    printf '%s\n' "$*"
    exit 1
}

# The kernel gives the handle 0 to what it set up by itself; anything else is somebody's own.
queues() { tc qdisc show dev "$1" root; }

case $1 in
    full-disk)
        mkdir -p full || refuse "no folder can be made here"
        n=0
        while [ "$n" -lt "$2" ]; do
            # The kernel's own full disk: every write to it fails with ENOSPC.
            ln -sf /dev/full "full/$n" || refuse "no link can be made here"
            n=$((n + 1))
        done
        # shellcheck disable=SC2016 # for whoever reads env.sh to expand
        printf '# Planted: full-disk\nACCEPT_PROGRESS=${ACCEPT_PROGRESS:+$ACCEPT_DIR/full}\n' >> env.sh
        echo planted ;;
    slow-link)
        ACCEPT_PEERS=$3
        interface=${ACCEPT_INTERFACE:-$(route_interface)}
        [ -n "$interface" ] || refuse "no interface leads to the other hosts"
        [ "$(id -u)" = 0 ] || refuse "only root may shape $interface"
        command -v tc >/dev/null || refuse "there is no tc"
        case $(queues "$interface") in
            *" 0: "*) ;;
            *) refuse "somebody shapes $interface already: $(queues "$interface" | head -n 1)" ;;
        esac
        setsid /bin/sh ./inject_fault.sh keep "$2" "$interface" </dev/null >inject_fault.log 2>&1 &
        keeper=$!
        until [ -e slow ] || ! kill -0 "$keeper" 2>/dev/null; do sleep 0.05; done
        [ -e slow ] || refuse "tc: $(tail -n 1 inject_fault.log)"
        echo planted ;;
    keep)
        # It carries the mark of the run, as everything of it does: what ends the run ends this.
        queues "$3" > before
        trap 'exit 0' TERM INT HUP
        # Whatever is not the kernel's own by then is this one's: so it was before.
        trap 'case $(queues "$3") in *" 0: "*) ;; *) tc qdisc del dev "$3" root ;; esac; rm -f slow' EXIT
        tc qdisc add dev "$3" root tbf rate "$RATE" burst 64kb limit 32mb || exit 1
        echo "$$ $3" > slow
        sleep "$2" &
        wait "$!" ;;
    undo)
        if read -r keeper interface < slow; then
            kill "$keeper"
            tries=100
            while [ -e slow ] && [ "$tries" -gt 0 ]; do
                tries=$((tries - 1))
                sleep 0.1
            done
        else
            interface=''
        fi 2>/dev/null
        if [ -e slow ]; then
            echo "$interface is shaped still: tc qdisc del dev $interface root"
        elif [ -n "$interface" ] && [ "$(queues "$interface")" != "$(cat before)" ]; then
            echo "$interface is not as it was: $(queues "$interface" | head -n 1)"
        else
            echo undone
        fi ;;
esac
