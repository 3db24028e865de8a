#!/bin/sh
# container_host.sh SECONDS KEEP [gpus]: the first process in the container of a run: prepares the host by
# bootstrap_host.sh, and stays until the run has ended here. The host reads the result in the file container.ready.
export ACCEPT_IN_CONTAINER=yes
umask 077
result=$(/bin/sh ./bootstrap_host.sh "$@")
printf '%s\n' "$result" > container.new && mv container.new container.ready
read -r guard _ 2>/dev/null < guard.pid
while [ -e run ] && [ -n "$guard" ] && kill -0 "$guard" 2>/dev/null; do sleep 0.2; done
