# shellcheck shell=sh
# shellcheck disable=SC2034 # used by the scripts that source this
# Sourced: sets `python` to the first Python that can run the programs, or to nothing.
python=''
for candidate in "${ACCEPT_PYTHON:-}" python3 python; do
    if [ -n "$candidate" ] && "$candidate" -ISc 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
        python=$candidate
        break
    fi
done
