# shellcheck shell=sh
# shellcheck disable=SC2034 # used by the scripts that source this
# Sourced: sets `python` to the first Python that can run the programs, or to nothing. In a run, the file `python`
# keeps the answer, because each look starts a Python.
python=''
[ -z "${ACCEPT_RUN:-}" ] || read -r python 2>/dev/null < "$ACCEPT_DIR/python"
[ -n "$python" ] || for candidate in "${ACCEPT_PYTHON:-}" python3 python python3.14 python3.13 python3.12 python3.11 python3.10; do
    if [ -n "$candidate" ] && "$candidate" -ISc 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
        python=$candidate
        [ -z "${ACCEPT_RUN:-}" ] || echo "$python" 2>/dev/null > "$ACCEPT_DIR/python"
        break
    fi
done
