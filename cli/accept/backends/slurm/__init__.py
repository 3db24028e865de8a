"""Run in a job of Slurm: this machine is a login node of the cluster."""
