{{/*
The spec of the Job that runs the pods: the only child of a JobSet, or a plain Job. Fields that Kubernetes
would fill in are explicit, so that an object is the same with and without webhooks.

Index 0 is the coordinator, and its exit code is the verdict:
- it succeeds: the Job succeeds too, whatever happens to the other pods (successPolicy);
- it fails with the code of a verdict: the Job fails immediately, even while a pod is still pending
  (podFailurePolicy; without it such a run would never end);
- another pod fails: it is not restarted (backoffLimitPerIndex), and the run goes on without it
  (maxFailedIndexes).
*/}}
{{- define "accept.jobSpec" -}}
parallelism: {{ int64 .Values.nodes }}
completions: {{ int64 .Values.nodes }}
completionMode: Indexed
backoffLimitPerIndex: 0
backoffLimit: 2147483647
maxFailedIndexes: {{ int64 .Values.nodes }}
podReplacementPolicy: Failed
activeDeadlineSeconds: {{ include "accept.activeDeadline" . }}
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
template:
  {{- include "accept.pod" . | nindent 2 }}
{{- end -}}
