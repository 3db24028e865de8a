#!/bin/sh
# Prints a description of this host as one fact: complete with a Python, else what sh can find out.
here=$(cd "$(dirname "$0")" && pwd)
ACCEPT_HOST=$(cat "$ACCEPT_DIR/host" 2>/dev/null || hostname)
export ACCEPT_HOST
# shellcheck source=/dev/null
. "$here/python.sh"
[ -z "$python" ] || exec "$python" "$here/inventory.py"
memory=$(sed -n 's/^MemTotal: *\([0-9]*\) kB/\1/p' /proc/meminfo)
# shellcheck source=/dev/null
. "$here/../gpus.sh"
if [ -n "${CUDA_VISIBLE_DEVICES+set}" ]; then
    printf 'ACCEPT {"problem":"tool-missing","check":"inventory","message":"%s"}\n' \
        "CUDA_VISIBLE_DEVICES is set on $ACCEPT_HOST, and only Python 3.10 or newer reads it, so all GPUs count"
fi
gpus=$(list_all_gpus |
    sed -n 's/^GPU \([0-9]*\): \([^"]*\) (UUID: \([^)"]*\))$/{"index":\1,"uuid":"\3","name":"\2","processes":[]}/p' | paste -sd, -)
memlock=$(sed -n 's/^Max locked memory *\([^ ]*\).*/\1/p' /proc/self/limits)
[ "$memlock" = unlimited ] || memlock=$((memlock / 1024))
# CAP_IPC_LOCK is bit 14, and counts in the first user namespace alone: inventory.py.
lock=$((0x0$(sed -n 's/^CapEff:[[:space:]]*//p' /proc/self/status) >> 14 & 1))
grep -q '^ *0 *0 *4294967295$' /proc/self/uid_map || lock=0
[ "$lock" = 1 ] && lock=true || lock=false
printf 'ACCEPT {"fact":"inventory","check":"inventory","host":"%s","value":{"cpus":%d,"memoryBytes":%d,"gpus":[%s],"pciNvidia":%d,"nics":[],"memlock":"%s","ipcLock":%s,"kernel":"%s","versions":{},"env":{}}}\n' \
    "$ACCEPT_HOST" "$(grep -c '^processor' /proc/cpuinfo)" "$((memory * 1024))" "$gpus" "$(count_pci_gpus)" "$memlock" "$lock" "$(uname -r)"
