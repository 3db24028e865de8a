"""Run on a Kubernetes cluster: a JobSet or a Job, installed by Helm, followed through the API."""
