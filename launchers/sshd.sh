# shellcheck shell=sh
# Sourced, in the run's folder, by the scripts that start the run's own sshd on a host or in a pod.

# find_sshd: prints the path of sshd, whose folder is often not on the PATH.
find_sshd() {
    command -v sshd || command -v /usr/sbin/sshd || command -v /usr/local/sbin/sshd
}

# save_environment: saves the environment of a container, because sshd starts commands with an empty one. In a job of
# Slurm, mpirun would use Slurm, so it leaves out those variables, too.
save_environment() (
    for name in $(env | sed -n 's/^\([A-Za-z_][A-Za-z_0-9]*\)=.*/\1/p'); do
        case $name in
            ACCEPT_* | KUBERNETES_* | SLURM* | JOB_COMPLETION_INDEX) unset "$name" ;;
            HOME | PWD | OLDPWD | SHLVL | TERM | _) unset "$name" ;;
        esac
    done
    export -p
) > host.env

# login_problem: prints why nobody could log in to this container; fails if there is no such reason.
login_problem() {
    if ! id -un >/dev/null 2>&1; then
        echo "the user id $(id -u) has no name (/etc/passwd), and ssh needs one"
        return
    fi
    case $(sed -n "s/^$(id -un):\([^:]*\):.*/\1/p" /etc/shadow 2>/dev/null) in
        '!'*) echo "the account $(id -un) is locked (/etc/shadow), so sshd lets nobody in: usermod -p '*' $(id -un)" ;;
        *) return 1 ;;
    esac
}

# write_sshd_config SSHD: writes sshd_config. Only the run's own key is accepted; it is the host key, too. The file
# `logins` limits how many clients may log in at the same time. No algorithm is named, so a host in FIPS mode uses
# those that it allows.
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
MaxStartups $(cat logins 2>/dev/null || echo 1000)
MaxSessions 1000
ClientAliveInterval 15
ClientAliveCountMax 3
LogLevel INFO
CONFIG
    # OpenSSH 9.8 and later penalize a host that opens many connections; older versions reject the keyword.
    echo 'PerSourcePenalties no' > penalties
    cat sshd_config penalties > sshd_config.try
    "$1" -t -f sshd_config.try 2>/dev/null && mv sshd_config.try sshd_config
    return 0
}

# listen SSHD PORT: starts sshd on PORT; sets `daemon` to its process id and logs to sshd.log.
# Fails if sshd does not listen.
listen() {
    "$1" -D -e -f "$ACCEPT_DIR/sshd_config" -p "$2" 2>sshd.log 3>&- &
    daemon=$!
    until grep -q 'Server listening' sshd.log || ! kill -0 "$daemon" 2>/dev/null; do sleep 0.05; done
    sleep 0.05
    # Most clients cannot use a port that was free for IPv6 only.
    if grep -q 'Server listening' sshd.log && ! grep -q '^Bind to port .* failed' sshd.log; then
        return 0
    fi
    kill "$daemon" 2>/dev/null
    daemon=''
    return 1
}

# start_timer SECONDS: writes `expired` to the pipe `events` after SECONDS; end_timer cancels that.
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

# next: sets `event` to the next word of the pipe, which is open as file descriptor 3.
# shellcheck disable=SC2034 # used by the script that sources this
next() {
    # A trapped signal interrupts the first `read`; the second one reads what the trap wrote.
    read -r event <&3 || read -r event <&3 || event=expired
}

# stop_coordinator: makes the coordinator write its results and notify the other hosts, and waits for it.
stop_coordinator() {
    kill -TERM "$(cat coordinator.pid)" 2>/dev/null
    tries=300
    until [ -e status ] || [ "$tries" = 0 ]; do
        tries=$((tries - 1))
        sleep 0.1
    done
}
