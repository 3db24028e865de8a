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
