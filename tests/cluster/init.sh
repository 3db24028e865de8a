#!/bin/bash
# The first process of a test host (tests/cluster/hosts.py starts it in new mount, PID, network,
# UTS and IPC namespaces): init.sh STATE NAME TMPFS_SIZE BASE [SOURCE TARGET]...
#
# The host sees the files of BASE (/: those of the machine), read-write, except for the places hidden
# below. SOURCE is shown at TARGET, even if TARGET is in a hidden place. The script prints its process
# id as the machine sees it. Then it waits for "go", which may be followed by a command to run first.
# When standard input ends, the host ends with every process in it.
set -euo pipefail

state=$1 name=$2 size=$3 base=$4
shift 4
read -r pid _ </proc/self/stat
root=$state/root

mount --rbind "$base" "$root"
[ "$base" = / ] || mount --rbind /dev "$root/dev"
mount -t proc -o nosuid,nodev,noexec proc "$root/proc"
mount -t sysfs -o nosuid,nodev,noexec sysfs "$root/sys"
[ ! -d /sys/fs/cgroup ] || mount --rbind /sys/fs/cgroup "$root/sys/fs/cgroup"
for place in tmp:1777 var/tmp:1777 dev/shm:1777 run:755 root:700 var/log:755; do
    mount -t tmpfs -o "nosuid,nodev,size=$size,mode=${place#*:}" accept-test "$root/${place%:*}"
done
while [ $# -gt 0 ]; do
    mkdir -p "$root$2"
    mount --rbind "$1" "$root$2"
    shift 2
done

# A link in these places leads into /run or elsewhere, and is the machine's business.
for file in hosts hostname resolv.conf shadow; do
    [ -L "$root/etc/$file" ] || [ ! -e "$root/etc/$file" ] || mount --bind "$state/$name/$file" "$root/etc/$file"
done
mount --bind "$state/$name/ssh" "$root/etc/ssh"
mkdir -m 700 "$root/root/.ssh"
install -m 600 "$state/$name/authorized_keys" "$root/root/.ssh/authorized_keys"
mkdir -m 755 "$root/run/sshd" "$root/run/lock" "$root/run/before"
exec 4<"$state/$name/network"

pivot_root "$root" "$root/run/before"
cd /root
umount -l /run/before
rmdir /run/before
echo "${name%%.*}" >/proc/sys/kernel/hostname
# A queue in front of a slow link then stays a fraction of a second, however many send to it.
echo 4096 131072 2097152 >/proc/sys/net/ipv4/tcp_rmem

echo "$pid"
read -r order command || exit 0
[ "$order" = go ] || exit 0
ip -batch - <&4
[ -z "${command:-}" ] || sh -c "$command" </dev/null >/dev/null
echo ready
# Bash collects the orphans of the host while it waits here.
while read -r _; do :; done
