{{/*
The spec of a Job that runs pods: a child of a JobSet, or a plain Job. Fields that Kubernetes would fill in are
explicit, so that an object is the same with and without webhooks.

Index 0 is the coordinator, and its exit code is the verdict:
- it succeeds: the Job succeeds too, whatever happens to the other pods (successPolicy);
- it fails with the code of a verdict: the Job fails immediately, even while a pod is still pending
  (podFailurePolicy; without it such a run would never end);
- another pod fails: it is not restarted (backoffLimitPerIndex), and the run goes on without it
  (maxFailedIndexes).

A coordinator with a pod of its own (`role`) has a Job of its own, with only index 0. No pod decides about the Job of
the other pods. It still fails when its last pod ends after any of them has failed. So the coordinator asks one of
them to stay (pod_entrypoint.sh).
*/}}
{{- define "accept.jobSpec" -}}
{{- $role := get . "role" -}}
{{- $pods := eq $role "coordinator" | ternary 1 (int64 .Values.nodes) -}}
parallelism: {{ $pods }}
completions: {{ $pods }}
completionMode: Indexed
backoffLimitPerIndex: 0
backoffLimit: 2147483647
maxFailedIndexes: {{ $pods }}
podReplacementPolicy: Failed
activeDeadlineSeconds: {{ include "accept.activeDeadline" . }}
{{- if ne $role "host" }}
successPolicy:
  rules:
    - succeededIndexes: "0"
podFailurePolicy:
  rules:
    - action: FailJob
      onExitCodes:
        containerName: accept
        operator: In
        values: [3, 5, 6, 7]
{{- end }}
template:
  {{- include "accept.pod" . | nindent 2 }}
{{- end -}}
