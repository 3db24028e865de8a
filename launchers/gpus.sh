# shellcheck shell=sh
# count_pci_gpus: prints the number of NVIDIA GPUs on the PCI bus. Class 0x03 is a display controller: NVSwitches and
# audio functions of NVIDIA have other classes.
count_pci_gpus() {
    gpus=0
    for device in "${ACCEPT_SYS:-/sys}"/bus/pci/devices/*; do
        [ "$(cat "$device/vendor" 2>/dev/null)" = 0x10de ] || continue
        case $(cat "$device/class" 2>/dev/null) in 0x03*) gpus=$((gpus + 1)) ;; esac
    done
    printf '%s\n' "$gpus"
}

# list_gpus FOLDER: prints the lines of `nvidia-smi -L`, one per GPU that this job was given, in the order of its ranks,
# and an empty line for one that is missing, so that the ranks after it keep their GPUs. FOLDER contains given_gpus.py,
# which reads CUDA_VISIBLE_DEVICES. Without a Python all GPUs are printed, and inventory.sh reports that.
list_gpus() {
    if [ -n "${CUDA_VISIBLE_DEVICES+set}" ]; then
        list_all_gpus | { "${ACCEPT_PYTHON:-python3}" -IS "$1/given_gpus.py" 2>/dev/null || cat; }
    else
        list_all_gpus | awk '{ for (; shown < $2 + 0 && shown < 1024; shown++) print ""; print; shown++ }'
    fi
}

# list_all_gpus: prints those of all GPUs, also of AMD's. A container without the driver's capability "utility" has no nvidia-smi: then
# the lines come from the kernel driver, for the GPUs whose device file is here, because a container may see those of
# others in /proc.
list_all_gpus() {
    if command -v nvidia-smi >/dev/null 2>&1; then
        nvidia-smi -L 2>/dev/null | grep '^GPU'
        return
    fi
    if command -v amd-smi >/dev/null 2>&1; then
        amd-smi list 2>/dev/null |
            awk '$1 == "GPU:" { number = $2 } $1 == "UUID:" { printf "GPU %s: AMD GPU (UUID: %s)\n", number, $2 }'
        return
    fi
    number=0
    for information in "${ACCEPT_ROOT:-}"/proc/driver/nvidia/gpus/*/information; do
        [ -r "$information" ] || continue
        minor=$(sed -n 's/^Device Minor:[[:space:]]*//p' "$information")
        [ -e "${ACCEPT_ROOT:-}/dev/nvidia${minor:-x}" ] || continue
        # Before its first use, the UUID of a GPU is "GPU-????????-…": unknown.
        printf 'GPU %d: %s (UUID: %s)\n' "$number" "$(sed -n 's/^Model:[[:space:]]*//p' "$information")" \
            "$(sed -n 's/^GPU UUID:[[:space:]]*\([A-Za-z0-9-]*\)$/\1/p' "$information")"
        number=$((number + 1))
    done
}
