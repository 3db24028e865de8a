#!/bin/bash
# install.sh [LIST]: installs the Debian packages of tests/debian-packages.txt that are missing.
# Without root, or without apt, it names them in one line and exits 1.
set -euo pipefail

list=${1:-$(dirname "$0")/../debian-packages.txt}
missing=()
while read -r package _; do
    case $package in '' | '#'*) continue ;; esac
    state=$(dpkg-query --show --showformat='${db:Status-Status}' "$package" 2>/dev/null || true)
    [ "$state" = installed ] || missing+=("$package")
done <"$list"
[ ${#missing[@]} -gt 0 ] || exit 0

if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "install.sh: missing, and only root with apt can install them: ${missing[*]}" >&2
    exit 1
fi

# A package that brings a server must not start it here: 101 means "not allowed by the policy".
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
    trap 'rm -f "$policy"' EXIT
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod 755 "$policy"
fi

echo "install.sh: installing ${missing[*]}" >&2
export DEBIAN_FRONTEND=noninteractive
install=(apt-get install --yes --quiet --no-install-recommends "${missing[@]}")
"${install[@]}" >/dev/null || { apt-get update --quiet >/dev/null && "${install[@]}" >/dev/null; }

# Nor at the next boot.
for unit in openssh-server:ssh.service openssh-server:ssh.socket munge:munge slurmctld:slurmctld slurmd:slurmd \
    podman:podman.service podman:podman.socket podman:podman-restart.service podman:podman-auto-update.timer; do
    case " ${missing[*]} " in
    *" ${unit%:*} "*) systemctl disable "${unit#*:}" >/dev/null 2>&1 || true ;;
    esac
done
