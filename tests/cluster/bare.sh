#!/usr/bin/env bash
# Runs a script in a throw-away copy of a base system, as a user without rights:
#   unshare --mount --pid --fork --kill-child bash bare.sh BASE SCRATCH SCRIPT NAME=VALUE...
# The mounts and whatever still runs go with the namespaces. SCRATCH/home is the user's home.
set -euo pipefail
base=$1 scratch=$2 script=$3
shift 3
root=$scratch/root

mount --make-rprivate /
mkdir -p "$root" "$scratch/upper" "$scratch/overlay"
if ! mount -t overlay overlay "$root" \
  -o "lowerdir=$base,upperdir=$scratch/upper,workdir=$scratch/overlay" 2>/dev/null; then
  cp -a "$base/." "$root"
fi
mount -t proc proc "$root/proc"
mount --rbind /sys "$root/sys"
mount --rbind /dev "$root/dev"
mkdir -p "$root/home/user"
mount --bind "$scratch/home" "$root/home/user"
cp -L /etc/resolv.conf "$root/etc/resolv.conf"
printf '127.0.0.1 localhost %s\n' "$(hostname)" >"$root/etc/hosts"
if [ -s /etc/ssl/certs/ca-certificates.crt ]; then
  cp -L /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"
fi
if [ -s /etc/pip.conf ]; then cp -L /etc/pip.conf "$root/etc/"; fi
chown -R 1000:1000 "$scratch/home"
chroot "$root" /bin/bash -c "$(<"$scratch/prepare")"
exec chroot "$root" /usr/bin/setpriv --reuid=1000 --regid=1000 --clear-groups --inh-caps=-all \
  /usr/bin/env --ignore-environment HOME=/home/user USER=user LANG=C.UTF-8 \
  PATH=/usr/local/bin:/usr/bin:/bin "$@" /bin/bash -c "cd && $script"
