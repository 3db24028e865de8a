{{/* Names, and what is asked of the values in more than one place. */}}

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
Name of this launch: as given, else five at random. Drawn once for all templates of a rendering, hence
kept where every template finds it again.
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

{{/* What precedes the index in the host name of a pod. */}}
{{- define "accept.hostPrefix" -}}
{{ include "accept.fullname" . }}-{{ if include "accept.jobset" . }}w-0-{{ end }}
{{- end -}}

{{/*
The longest full name. JobSet: its webhook allows NAME-w-0-INDEX-abcde, the name of a pod, 63 characters.
Job: NAME-INDEX, the host name of a pod, has 63.
*/}}
{{- define "accept.longest" -}}
{{- $digits := len (toString (sub (max 1 (int64 .Values.nodes)) 1)) -}}
{{- sub (ternary 52 62 (ne (include "accept.jobset" .) "")) $digits -}}
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

{{- define "accept.hostNetwork" -}}
{{- if ternary .Values.machine.hostNetwork .Values.site.hostNetwork (kindIs "invalid" .Values.site.hostNetwork) -}}
true
{{- end -}}
{{- end -}}

{{/* Whether the run waits to be released: Kueue's own way to keep it. */}}
{{- define "accept.suspend" -}}
{{- if kindIs "invalid" .Values.site.suspend -}}
{{ ne (default "" .Values.site.queue) "" }}
{{- else -}}
{{ .Values.site.suspend }}
{{- end -}}
{{- end -}}

{{/*
What a pod may live at most once it has started: wait for index 0, which may come that much later and then
waits as long for the others, run, and be collected.
*/}}
{{- define "accept.life" -}}
{{- add (mul 2 (int64 .Values.startSeconds)) (int64 .Values.deadlineSeconds) (int64 (ceil .Values.results.holdSeconds)) (int64 .Values.debugHoldSeconds) -}}
{{- end -}}

{{/* The Secret with the run's key: the user's own, else the chart's. */}}
{{- define "accept.secret" -}}
{{- .Values.ssh.existingSecret | default (printf "%s-ssh" (include "accept.fullname" .)) -}}
{{- end -}}

{{/* Where evidence goes, as pods see it; empty: nowhere. */}}
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

{{/* A backstop: everything in the run has ended by then, 300 s of trying to send the evidence too. */}}
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
