#!/bin/sh
# Keep jobs off a node that `accept gate` refuses: Prolog, Epilog or HealthCheckProgram of slurmd.
PATH=/opt/accept/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export PATH HOME=/root ACCEPT_RUNS=/var/spool/accept
answer=$(accept gate --machine h100-8 --site none --time 20s --on-timeout pass) && exit 0
# A health check that meets a job on the node has measured nothing.
case $answer in *E-GPUS-IN-USE*) [ -n "$SLURM_JOB_ID" ] || exit 0 ;; esac
logger -t accept "$answer" 2>/dev/null
# accept changes no node. This line is the site's: without it, `sinfo -R` shows only "Prolog error".
# A health check does not get the name that Slurm has for the node.
by_host="s/^NodeName=\\([^ ]*\\) .* NodeHostName=$(hostname -s) .*/\\1/p"
scontrol update nodename="${SLURMD_NODENAME:-$(scontrol show node -o | sed -n "$by_host")}" state=drain \
    reason="accept: $(printf %.200s "${answer:-accept gate did not start}")"
exit 1
