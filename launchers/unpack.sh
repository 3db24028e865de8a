# shellcheck shell=sh
# find_unpacker: prints the path of bzip2, else of a Python that can unpack bzip2; fails if the host has neither.
find_unpacker() {
    command -v bzip2 && return
    for candidate in "${ACCEPT_PYTHON:-}" python3 python; do
        if [ -n "$candidate" ] && "$candidate" -c 'import bz2, tarfile' 2>/dev/null; then
            command -v "$candidate"
            return
        fi
    done
    return 1
}

# unpack ARCHIVE: unpacks a tar archive that is compressed with bzip2 into the current folder.
# Returns 2 if the host has no unpacker, and 1 after an error, which is printed.
unpack() {
    unpacker=$(find_unpacker) || return 2
    case $unpacker in
        *bzip2) "$unpacker" -dc "$1" | tar -xf - || return 1 ;;
        *) "$unpacker" -W ignore -m tarfile -e "$1" . || return 1 ;;
    esac
}

# unpack_programs: unpacks the programs and what they import; returns as unpack does.
unpack_programs() {
    unpack programs.tar.bz2 && unpack bindings.tar.bz2
}
