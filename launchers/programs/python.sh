# shellcheck shell=sh
# shellcheck disable=SC2034 # for those who source it
# Sourced: leaves in $python the first Python here that the programs can be run by, or nothing.
python=''
for candidate in "${ACCEPT_PYTHON:-}" python3 python; do
    if [ -n "$candidate" ] && "$candidate" -ISc 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
        python=$candidate
        break
    fi
done
