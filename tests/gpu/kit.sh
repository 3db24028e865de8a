#!/bin/bash
# kit.sh [VERSION]: fills build/gpu-kit with what `make test-gpu` needs on a machine that has only Python and torch: Open MPI,
# mpi4py, NVIDIA's bindings and the packages of the command line, in the versions of uv.lock.
set -euo pipefail
cd "$(dirname "$0")/../.."
python=${1:-3.12}
kit=build/gpu-kit/$python
uv=.tools/bin/uv
most_mb=60

[ -x "$uv" ] || make "$uv"
rm -rf "$kit"
mkdir -p "$kit"
# torch and numpy are those of the other machine.
"$uv" export --quiet --locked --no-dev --no-emit-project --extra run --no-hashes --prune torch --prune numpy > "$kit/versions.txt"
"$uv" pip install --quiet --target "$kit" --only-binary :all: --no-deps \
    --python-version "$python" --python-platform x86_64-manylinux_2_28 --requirements "$kit/versions.txt"
# Headers, manuals and static libraries are for building programs.
rm -rf "$kit"/include "$kit"/share/man "$kit"/share/doc
find "$kit" -name __pycache__ -type d -prune -exec rm -rf {} +
find "$kit" \( -name '*.a' -o -name '*.la' \) -delete
size=$(du -sm "$kit" | cut -f 1)
if [ "$size" -gt "$most_mb" ]; then
    echo "$kit has $size MB, at most $most_mb are allowed" >&2
    exit 1
fi
echo "$kit: $size MB, for Python $python on x86_64"
