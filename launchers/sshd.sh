# shellcheck shell=sh
# Sourced, in the run's folder, by what starts the run's own sshd on a host or in a pod.

# sshd's path; the folder of its own is not on every PATH.
find_sshd() {
    command -v sshd || command -v /usr/sbin/sshd || command -v /usr/local/sbin/sshd
}

# write_sshd_config SSHD: into sshd_config. The run's one key, which is the host key too, and nothing else.
write_sshd_config() {
    cat > sshd_config <<CONFIG || return
HostKey $ACCEPT_DIR/key
AuthorizedKeysFile $ACCEPT_DIR/authorized_keys
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
ForceCommand /bin/sh $ACCEPT_DIR/force_command.sh
AllowTcpForwarding no
AllowAgentForwarding no
X11Forwarding no
PermitTunnel no
PermitUserRC no
PrintMotd no
UseDNS no
LoginGraceTime 20
MaxStartups 1000
MaxSessions 1000
ClientAliveInterval 15
ClientAliveCountMax 3
KexAlgorithms curve25519-sha256,curve25519-sha256@libssh.org
LogLevel INFO
CONFIG
    # OpenSSH 9.8 and later punish a host from which many connections come; older ones refuse the word.
    echo 'PerSourcePenalties no' > penalties
    cat sshd_config penalties > sshd_config.try
    "$1" -t -f sshd_config.try 2>/dev/null && mv sshd_config.try sshd_config
    return 0
}

# listen SSHD PORT: starts sshd there; leaves its process id in `daemon`, its words in sshd.log.
# Fails where it does not listen.
listen() {
    "$1" -D -e -f "$ACCEPT_DIR/sshd_config" -p "$2" 2>sshd.log 3>&- &
    daemon=$!
    until grep -q 'Server listening' sshd.log || ! kill -0 "$daemon" 2>/dev/null; do sleep 0.05; done
    sleep 0.05
    # A port of which only the IPv6 side was free is of no use to most.
    if grep -q 'Server listening' sshd.log && ! grep -q '^Bind to port .* failed' sshd.log; then
        return 0
    fi
    kill "$daemon" 2>/dev/null
    daemon=''
    return 1
}

# start_timer SECONDS: says `expired` on the pipe `events` when they have passed.
start_timer() {
    {
        sleep "$1" &
        echo $! > timer
        wait $!
        echo expired > events
    } &
    alarm=$!
}
end_timer() {
    kill "$alarm" "$(cat timer)" 2>/dev/null
}

# next: leaves in `event` the next word on the pipe, which is open as 3.
# shellcheck disable=SC2034 # for who sources this
next() {
    # A signal that is trapped ends the first `read`; what the trap says is there for the second.
    read -r event <&3 || read -r event <&3 || event=expired
}

# Tells the coordinator to write what it has and to tell the others, and waits for it.
stop_coordinator() {
    kill -TERM "$(cat coordinator.pid)" 2>/dev/null
    tries=300
    until [ -e status ] || [ "$tries" = 0 ]; do
        tries=$((tries - 1))
        sleep 0.1
    done
}
