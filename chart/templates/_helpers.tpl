{{/* Names, and values that several templates use. */}}

{{/* Whether the run is a JobSet ("true") or a plain Job (""). */}}
{{- define "accept.jobset" -}}
{{- $api := "jobset.x-k8s.io/v1alpha2" -}}
{{- if eq .Values.site.controller "jobset" -}}
true
{{- else if eq .Values.site.controller "auto" -}}
{{- if or (.Capabilities.APIVersions.Has $api) (.Capabilities.APIVersions.Has (printf "%s/JobSet" $api)) -}}
true
{{- end -}}
{{- end -}}
{{- end -}}

{{/*
Name of this launch: as given, otherwise five random characters. It is stored in the values, so that all
templates of a rendering use the same one.
*/}}
{{- define "accept.attempt" -}}
{{- if not (hasKey .Values "_attempt") -}}
{{- $_ := set .Values "_attempt" (.Values.attempt | default (randAlphaNum 5 | lower)) -}}
{{- end -}}
{{- get .Values "_attempt" -}}
{{- end -}}

{{- define "accept.fullname" -}}
{{ .Release.Name }}-{{ include "accept.attempt" . }}
{{- end -}}

{{/* The host name of a pod without its index. */}}
{{- define "accept.hostPrefix" -}}
{{ include "accept.fullname" . }}-{{ if include "accept.jobset" . }}w-0-{{ end }}
{{- end -}}

{{- define "accept.labels" -}}
{{ include "accept.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/part-of: accept
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | quote }}
{{- end -}}

{{- define "accept.selectorLabels" -}}
app.kubernetes.io/name: accept
app.kubernetes.io/instance: {{ .Release.Name | quote }}
accept-release: {{ .Release.Name | quote }}
accept-run: {{ include "accept.fullname" . | quote }}
{{- end -}}

{{/* Whether the run is created suspended, as Kueue requires. */}}
{{- define "accept.suspend" -}}
{{- if kindIs "invalid" .Values.site.suspend -}}
{{ ne (default "" .Values.site.queue) "" }}
{{- else -}}
{{ .Values.site.suspend }}
{{- end -}}
{{- end -}}

{{/*
The longest life of a pod after its start: wait for index 0, which may start later by the start timeout and
then waits as long for the others; run; wait for `accept collect`.
*/}}
{{- define "accept.life" -}}
{{- add (mul 2 (int64 .Values.startSeconds)) (int64 .Values.deadlineSeconds) (int64 (ceil .Values.results.holdSeconds)) (int64 .Values.debugHoldSeconds) -}}
{{- end -}}

{{/* The Secret with the key of the run: the user's, otherwise the chart's. */}}
{{- define "accept.secret" -}}
{{- .Values.ssh.existingSecret | default (printf "%s-ssh" (include "accept.fullname" .)) -}}
{{- end -}}

{{/* The place for the evidence, as pods see it; empty if there is none. */}}
{{- define "accept.results" -}}
{{- if .Values.results.location -}}
{{ .Values.results.location }}
{{- else if .Values.results.volume -}}
/accept/results
{{- end -}}
{{- end -}}

{{/* Metadata of the object that Kueue queues, JobSet or Job. */}}
{{- define "accept.queueLabels" -}}
{{- with .Values.site.queue }}
kueue.x-k8s.io/queue-name: {{ . | quote }}
{{- end }}
{{- with .Values.site.workloadPriorityClass }}
kueue.x-k8s.io/priority-class: {{ . | quote }}
{{- end }}
{{- end -}}

{{- define "accept.queueAnnotations" -}}
{{- if .Values.site.flexStart -}}
provreq.kueue.x-k8s.io/maxRunDurationSeconds: {{ include "accept.activeDeadline" . | quote }}
{{- end -}}
{{- end -}}

{{/* A safety limit: the run has ended by then, including 300 s of attempts to send the evidence. */}}
{{- define "accept.activeDeadline" -}}
{{- add (int64 (include "accept.life" .)) (include "accept.results" . | empty | ternary 300 660) -}}
{{- end -}}

{{/* A value of an environment variable: numbers without an exponent. */}}
{{- define "accept.text" -}}
{{- if and (kindIs "float64" .) (eq (floor .) .) -}}
{{ int64 . }}
{{- else -}}
{{ toString . }}
{{- end -}}
{{- end -}}
