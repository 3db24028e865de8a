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
Name of this launch: as given, otherwise the time (UTC) and four random characters, or five random ones if that is too
long. It is stored in the values, so that all templates of a rendering use the same one.
*/}}
{{- define "accept.attempt" -}}
{{- if not (hasKey .Values "_attempt") -}}
{{- $dated := printf "%s-%s" (dateInZone "20060102-1504" now "UTC") (randAlphaNum 4 | lower) -}}
{{- $fits := le (len (printf "%s-%s" .Release.Name $dated)) (int .Values.longestName) -}}
{{- $_ := set .Values "_attempt" (.Values.attempt | default (ternary $dated (randAlphaNum 5 | lower) $fits)) -}}
{{- end -}}
{{- get .Values "_attempt" -}}
{{- end -}}

{{- define "accept.fullname" -}}
{{ .Release.Name }}-{{ include "accept.attempt" . }}
{{- end -}}

{{/* Whether the coordinator has a pod of its own ("true" or ""). Otherwise index 0 is the coordinator. */}}
{{- define "accept.separate" -}}
{{- if eq .Values.site.coordinator "separate" -}}true{{- end -}}
{{- end -}}

{{/* The labels by which the coordinator's pod differs from the other pods of the run. */}}
{{- define "accept.coordinatorLabels" -}}
{{- if include "accept.separate" . -}}
accept-role: coordinator
{{- else -}}
batch.kubernetes.io/job-completion-index: "0"
{{- end -}}
{{- end -}}

{{/*
Changes the context `.` of templates to that of the coordinator's own pod. It needs no GPU, and nothing of the machine's
devices and plugins. It keeps away from the nodes with GPUs, which are tested.
*/}}
{{- define "accept.becomeCoordinator" -}}
{{- $own := .Values.site.coordinatorPod -}}
{{- $resources := $own.resources -}}
{{- if not (or $resources .Values.site.queue) -}}
{{- /* A master connection of ssh to each host takes 1.34 MB. */ -}}
{{- $resources = dict "requests" (dict "cpu" "1" "memory" (printf "%dMi" (add 2048 (div (mul 3 (int64 .Values.nodes)) 2)))) -}}
{{- end -}}
{{- $rules := list -}}
{{- /* Of GKE, and of NVIDIA's GPU feature discovery. */ -}}
{{- range list "cloud.google.com/gke-accelerator" "nvidia.com/gpu.present" -}}
{{- $rules = append $rules (dict "key" . "operator" "DoesNotExist") -}}
{{- end -}}
{{- $terms := dict "nodeSelectorTerms" (list (dict "matchExpressions" $rules)) -}}
{{- $away := dict "nodeAffinity" (dict "requiredDuringSchedulingIgnoredDuringExecution" $terms) -}}
{{- $capabilities := dict "drop" (list "ALL") -}}
{{- if not .Values.site.podSecurityContext.runAsNonRoot -}}
{{- $_ := set $capabilities "add" (.Files.Get "rules.yaml" | fromYaml).sshdCapabilities -}}
{{- end -}}
{{- $security := merge (dict "capabilities" $capabilities "allowPrivilegeEscalation" false) (omit .Values.pod.securityContext "privileged" "capabilities") -}}
{{- $pod := merge (pick .Values.pod "labels" "annotations" "hostNetwork" "env") (dict
      "nodeSelector" $own.nodeSelector
      "tolerations" $own.tolerations
      "resources" $resources
      "securityContext" $security
      "sharedMemory" ""
      "networks" list
      "resourceClaims" list
      "computeDomain" false
      "volumes" $own.volumes
      "volumeMounts" $own.volumeMounts
      "initContainers" list
      "sidecars" list) -}}
{{- $site := omit .Values.site "runtimeClassName" "includeNodes" "excludeNodes" "topology" -}}
{{- $site = mergeOverwrite $site (dict
      "runtimeClassName" "" "includeNodes" list "excludeNodes" list "topology" dict) -}}
{{- $_ := set $site "affinity" $away -}}
{{- $values := merge (dict "pod" $pod "site" $site) (omit .Values "pod" "site") -}}
{{- $_ := set . "edited" (include "accept.edited" .) -}}
{{- $_ := set $values "onePodPerNode" false -}}
{{- $_ := set . "Values" $values -}}
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
{{- $collect := dig "collectSeconds" 0.0 (fromJson (.Values.plan | default "{}")) -}}
{{- add (int64 (ceil $collect)) (mul 2 (int64 .Values.startSeconds)) (int64 .Values.deadlineSeconds) (int64 (ceil .Values.results.holdSeconds)) (int64 .Values.debugHoldSeconds) -}}
{{- end -}}

{{/* The Secret with the key of the run: the user's, otherwise the chart's. */}}
{{- define "accept.secret" -}}
{{- .Values.ssh.existingSecret | default (printf "%s-ssh" (include "accept.fullname" .)) -}}
{{- end -}}

{{/* What index 0 knows about the positions of nodes, as JSON; empty: nothing. */}}
{{- define "accept.positions" -}}
{{- $site := .Values.site -}}
{{- if or $site.positions $site.readNodes -}}
{{- toJson (dict "labels" $site.positionLabels "positions" $site.positions) -}}
{{- end -}}
{{- end -}}

{{/* The service account of the pods; empty: the default one. */}}
{{- define "accept.serviceAccount" -}}
{{- .Values.site.serviceAccount | default (.Values.site.readNodes | ternary (include "accept.fullname" .) "") -}}
{{- end -}}

{{/* The place for the evidence, as pods see it; empty if there is none. */}}
{{- define "accept.results" -}}
{{- if .Values.results.location -}}
{{ .Values.results.location }}
{{- else if .Values.results.volume -}}
/accept/results
{{- end -}}
{{- end -}}

{{/* The URL of the results if they are in a bucket that is mounted with Cloud Storage FUSE; otherwise empty. */}}
{{- define "accept.mountedBucket" -}}
{{- $csi := dig "csi" dict .Values.results.volume -}}
{{- $name := dig "volumeAttributes" "bucketName" "" $csi -}}
{{- if and (eq (dig "driver" "" $csi) "gcsfuse.csi.storage.gke.io") $name (ne $name "_") -}}
{{- $below := trimPrefix "/accept/results" (trimPrefix "file://" (include "accept.results" .)) -}}
{{- $only := regexFind "only-dir=[^,]+" (dig "volumeAttributes" "mountOptions" "" $csi) | trimPrefix "only-dir=" | trimAll "/" -}}
gs://{{ $name }}{{ with $only }}/{{ . }}{{ end }}{{ $below }}
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

{{/* The environment of all ranks, with text as values. null, as in --set launcher.env.NAME=null, removes one. */}}
{{- define "accept.launcherEnv" -}}
{{- $found := dict -}}
{{- range $name, $value := .Values.launcher.env -}}
{{- if not (kindIs "invalid" $value) -}}{{- $_ := set $found $name (include "accept.text" $value) -}}{{- end -}}
{{- end -}}
{{- toYaml $found -}}
{{- end -}}

{{/* What was changed since `accept render`, as a JSON list of texts, for the log, the plan and the verdict. */}}
{{- define "accept.edited" -}}
{{- $found := list -}}
{{- $given := include "accept.launcherEnv" . | fromYaml -}}
{{- $rendered := (fromJson .Values.plan).env | default dict -}}
{{- range $name := keys $given $rendered | uniq | sortAlpha -}}
{{- $value := get $given $name | trunc 100 -}}
{{- $was := get $rendered $name | trunc 100 -}}
{{- if not (hasKey $given $name) -}}
{{- $found = append $found (printf "launcher.env.%s: removed, was %s" $name $was) -}}
{{- else if not (hasKey $rendered $name) -}}
{{- $found = append $found (printf "launcher.env.%s: added, is %s" $name $value) -}}
{{- else if ne (get $given $name) (get $rendered $name) -}}
{{- $found = append $found (printf "launcher.env.%s: %s instead of %s" $name $value $was) -}}
{{- end -}}
{{- end -}}
{{- range $path, $script := .Values.launcher.scripts -}}
{{- if ne (sha256sum $script) (get $.Values.accept.scripts $path) -}}
{{- $found = append $found (printf "launcher.scripts.%s: changed" $path) -}}
{{- end -}}
{{- end -}}
{{- range $path, $was := .Values.accept.settings -}}
{{- $keys := splitList "." $path -}}
{{- $value := get $.Values (first $keys) -}}
{{- if eq $path "pod" -}}{{- $value = omit $value "source" -}}{{- else -}}{{- $value = get $value (last $keys) -}}{{- end -}}
{{- if ne ($value | default "" | toRawJson | sha256sum) $was -}}
{{- $found = append $found (printf "%s: changed" $path) -}}
{{- end -}}
{{- end -}}
{{- $plan := fromJson .Values.plan -}}
{{- range $key, $was := dict "debugHoldSeconds" ($plan.holdSeconds | default 0) "debugHoldAlways" ($plan.holdAlways | default false) -}}
{{- $value := get $.Values $key -}}
{{- if ne (int64 $value) (ceil $was | int64) -}}
{{- $found = append $found (printf "%s: %v instead of %v" $key $value $was) -}}
{{- end -}}
{{- end -}}
{{- if gt (int64 .Values.deadlineSeconds) (ceil $plan.deadlineSeconds | int64) -}}
{{- $found = append $found (printf "deadlineSeconds: %v instead of %v" .Values.deadlineSeconds $plan.deadlineSeconds) -}}
{{- end -}}
{{- range $key, $value := include "accept.collectives" . | fromJson -}}
{{- $found = append $found (printf "collectives.%s: is %v" $key $value) -}}
{{- end -}}
{{- toJson $found -}}
{{- end -}}

{{/* The changes of sizes and repetitions of collectives, as JSON; {} if there are none. */}}
{{- define "accept.collectives" -}}
{{- $found := dict -}}
{{- range $key, $value := .Values.collectives -}}
{{- if not (kindIs "invalid" $value) -}}
{{- $_ := set $found $key (kindIs "string" $value | ternary $value (int64 $value)) -}}
{{- end -}}
{{- end -}}
{{- toJson $found -}}
{{- end -}}

{{/* The bytes of a message size such as 8G. */}}
{{- define "accept.bytes" -}}
{{- $units := dict "K" 1024 "M" 1048576 "G" 1073741824 "T" 1099511627776 -}}
{{- mul (regexFind "^[0-9]+" . | int64) (get $units (regexFind "[KMGT]$" .) | default 1) -}}
{{- end -}}

{{/* A text as one word of a shell. */}}
{{- define "accept.quoted" -}}
'{{ replace "'" "'\\''" . }}'
{{- end -}}
