"""Run on a Kubernetes cluster: a JobSet or a Job, installed by Helm and followed through the API."""
