"""Run in a Slurm job: this machine is a login node of the cluster."""
