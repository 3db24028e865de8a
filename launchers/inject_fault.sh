#!/bin/sh
# inject_fault.sh FAULT RANKS SECONDS PEER: injects a fault of a drill into this host; runs in the run's folder. Only
# the coordinator calls it, and only if the plan has the fault. Prints `injected`, or the reason why it cannot.
# RANKS are those of the run, SECONDS is its time limit, PEER is the address of another host.
#   full-disk   writes of the ranks' progress fail with ENOSPC
#   slow-link   limits traffic out of the interface toward PEER to RATE, for at most SECONDS
#   undo        ends slow-link; prints `undone`, or what is left
# slow-link needs root, tc, CAP_NET_ADMIN, and an interface without traffic shaping.
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

# The kernel's default queues have the handle 0; any other handle means that somebody configured the interface.
queues() { tc qdisc show dev "$1" root; }

case $1 in
    full-disk)
        mkdir -p full || refuse "no folder can be made here"
        n=0
        while [ "$n" -lt "$2" ]; do
            # Every write to /dev/full fails with ENOSPC.
            ln -sf /dev/full "full/$n" || refuse "no link can be made here"
            n=$((n + 1))
        done
        # shellcheck disable=SC2016 # expanded when env.sh is read
        printf '# Injected: full-disk\nACCEPT_PROGRESS=${ACCEPT_PROGRESS:+$ACCEPT_DIR/full}\n' >> env.sh
        echo injected ;;
    slow-link)
        ACCEPT_PEERS=$4
        interface=${ACCEPT_INTERFACE:-$(route_interface)}
        [ -n "$interface" ] || refuse "no interface leads to the other hosts"
        [ "$(id -u)" = 0 ] || refuse "only root may shape $interface"
        command -v tc >/dev/null || refuse "there is no tc"
        case $(queues "$interface") in
            *" 0: "*) ;;
            *) refuse "somebody shapes $interface already: $(queues "$interface" | head -n 1)" ;;
        esac
        setsid /bin/sh ./inject_fault.sh keep "$3" "$interface" </dev/null >inject_fault.log 2>&1 &
        keeper=$!
        until [ -e slow ] || ! kill -0 "$keeper" 2>/dev/null; do sleep 0.05; done
        [ -e slow ] || refuse "tc: $(tail -n 1 inject_fault.log)"
        echo injected ;;
    keep)
        # This process carries the mark of the run, so it ends with the run.
        queues "$3" > before
        trap 'exit 0' TERM INT HUP
        # At this point only this script can have configured the interface: slow-link refuses otherwise.
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
            echo "$interface is still shaped: tc qdisc del dev $interface root"
        elif [ -n "$interface" ] && [ "$(queues "$interface")" != "$(cat before)" ]; then
            echo "$interface is not as it was: $(queues "$interface" | head -n 1)"
        else
            echo undone
        fi ;;
esac
