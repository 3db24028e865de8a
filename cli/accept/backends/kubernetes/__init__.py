"""Run on a Kubernetes cluster: a JobSet or a Job, installed by Helm, followed by API."""
