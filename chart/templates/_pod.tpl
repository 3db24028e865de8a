{{/* The pod template, the same for a JobSet and a Job. */}}
{{- define "accept.pod" -}}
{{- $v := .Values -}}
metadata:
  labels:
    {{- $ours := include "accept.labels" . | fromYaml }}
    {{- with get . "role" }}
    {{- $_ := set $ours "accept-role" . }}
    {{- end }}
    {{- toYaml (mergeOverwrite (deepCopy $v.pod.labels) $ours) | nindent 4 }}
  annotations:
    {{- toYaml (include "accept.podAnnotations" . | fromYaml) | nindent 4 }}
spec:
  restartPolicy: Never
  {{- /* When it is terminated, index 0 needs time to write its results and to notify the others. */}}
  terminationGracePeriodSeconds: 120
  schedulerName: default-scheduler
  {{- with include "accept.serviceAccount" . }}
  serviceAccountName: {{ . | quote }}
  {{- end }}
  {{- /* Only site.readNodes uses the API server, with its own token. Identities for buckets do not need this one. */}}
  automountServiceAccountToken: false
  enableServiceLinks: false
  hostNetwork: {{ $v.pod.hostNetwork }}
  dnsPolicy: {{ ternary "ClusterFirstWithHostNet" "ClusterFirst" $v.pod.hostNetwork }}
  {{- with $v.site.priorityClassName }}
  priorityClassName: {{ . | quote }}
  {{- end }}
  {{- with $v.site.runtimeClassName }}
  runtimeClassName: {{ . | quote }}
  {{- end }}
  {{- with $v.site.imagePullSecrets }}
  imagePullSecrets:
    {{- range . }}
    - name: {{ . | quote }}
    {{- end }}
  {{- end }}
  securityContext:
    {{- toYaml $v.site.podSecurityContext | nindent 4 }}
  {{- with $v.pod.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with include "accept.affinity" . | fromYaml }}
  affinity:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $v.pod.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with include "accept.claims" . | fromYamlArray }}
  resourceClaims:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with include "accept.initContainers" . | fromYamlArray }}
  initContainers:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  containers:
    - name: accept
      image: {{ $v.site.image | default "" | quote }}
      imagePullPolicy: {{ $v.site.imagePullPolicy }}
      command:
        - /bin/sh
        - -c
        - |-
          {{- include "accept.command" . | nindent 10 }}
      terminationMessagePath: /dev/termination-log
      terminationMessagePolicy: File
      ports:
        - name: ssh
          containerPort: {{ int64 $v.ssh.port }}
          {{- if $v.pod.hostNetwork }}
          {{- /* Declared, so that the scheduler never places two runs on one node. */}}
          hostPort: {{ int64 $v.ssh.port }}
          {{- end }}
          protocol: TCP
      env:
        {{- include "accept.env" . | trim | nindent 8 }}
      {{- with $v.site.extraEnvFrom }}
      envFrom:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      resources:
        {{- toYaml (include "accept.resources" . | fromYaml) | nindent 8 }}
      securityContext:
        {{- toYaml $v.pod.securityContext | nindent 8 }}
      volumeMounts:
        {{- include "accept.volumeMounts" . | nindent 8 }}
  volumes:
    {{- include "accept.volumes" . | nindent 4 }}
{{- end -}}

{{/*
Copies the rendered files and executes them. If that fails in the coordinator's pod, exit code 5 (interrupted) ends
the run immediately; on other pods, exit code 20 means that the image lacks something.
*/}}
{{- define "accept.command" -}}
umask 077
leave() {
  echo "accept: $1" | tee /dev/termination-log >&2
  [ "${ACCEPT_ROLE:-$JOB_COMPLETION_INDEX}" = {{ ne (include "accept.separate" .) "" | ternary "coordinator" "0" }} ] && exit 5
  exit 20
}
command -v tar >/dev/null || leave "the image $ACCEPT_IMAGE lacks tar: build it into the image, or name another image"
{{- if eq .Values.site.code "image" }}
code=/usr/local/share/accept/code
[ "$(cat "$code/sha256" 2>/dev/null)" = {{ .Values.accept.code }} ] || leave "the image $ACCEPT_IMAGE does not contain the code of accept {{ .Values.accept.version }} ({{ trunc 8 .Values.accept.code }}) in $code: add it (docker/README.md), or take it from the chart with --set site.code=chart"
cp -RL "$code"/* /opt/accept || leave "cannot copy the code into /opt/accept"
{{- end }}
cp -RL /accept/bundle/* /opt/accept || leave "cannot copy the run into /opt/accept"
exec /bin/sh /opt/accept/pod_entrypoint.sh
{{- end -}}

{{- define "accept.podAnnotations" -}}
{{- $v := .Values -}}
{{- $found := dict
      "kubectl.kubernetes.io/default-container" "accept"
      "cluster-autoscaler.kubernetes.io/safe-to-evict" "false" -}}
{{- if and $v.pod.networks (not $v.pod.hostNetwork) -}}
{{- $first := (first $v.pod.networks).interface -}}
{{- $list := list -}}
{{- range $v.pod.networks -}}
{{- $list = append $list (dict "interfaceName" .interface "network" .network) -}}
{{- if eq .network "default" -}}{{- $first = .interface -}}{{- end -}}
{{- end -}}
{{- $_ := set $found "networking.gke.io/default-interface" $first -}}
{{- $_ := set $found "networking.gke.io/interfaces" (toJson $list) -}}
{{- end -}}
{{- if eq (dig "csi" "driver" "" $v.results.volume) "gcsfuse.csi.storage.gke.io" -}}
{{- $_ := set $found "gke-gcsfuse/volumes" "true" -}}
{{- /* Zero removes the sidecar's limits: with its default of 256 MiB, the evidence of 1,000 nodes takes long. */ -}}
{{- range list "cpu" "memory" "ephemeral-storage" -}}
{{- $_ := set $found (printf "gke-gcsfuse/%s-limit" .) "0" -}}
{{- end -}}
{{- end -}}
{{- with and $v.site.queue $v.site.topology -}}
{{- with .required -}}{{- $_ := set $found "kueue.x-k8s.io/podset-required-topology" . -}}{{- end -}}
{{- with .preferred -}}{{- $_ := set $found "kueue.x-k8s.io/podset-preferred-topology" . -}}{{- end -}}
{{- with .slice -}}{{- $_ := set $found "kueue.x-k8s.io/podset-slice-required-topology" . -}}{{- end -}}
{{- with .sliceSize -}}{{- $_ := set $found "kueue.x-k8s.io/podset-slice-size" (toString (int64 .)) -}}{{- end -}}
{{- end -}}
{{- toYaml (mergeOverwrite $found $v.pod.annotations) -}}
{{- end -}}

{{- define "accept.env" -}}
{{- $all := mergeOverwrite (deepCopy .Values.pod.env)
      (dict
        "ACCEPT_ATTEMPT" (include "accept.fullname" .)
        "ACCEPT_NODES" (.Values.nodes | int64 | toString)
        "ACCEPT_HOST_PREFIX" (include "accept.hostPrefix" .)
        "ACCEPT_SSH_PORT" (.Values.ssh.port | int64 | toString)
        "ACCEPT_START_SECONDS" (.Values.startSeconds | int64 | toString)
        "ACCEPT_LIFE_SECONDS" (include "accept.life" .)
        "ACCEPT_HOLD_SECONDS" (.Values.results.holdSeconds | ceil | int64 | toString)
        "ACCEPT_DEBUG_HOLD" (.Values.debugHoldSeconds | ceil | int64 | toString)
        "ACCEPT_DEBUG_HOLD_ALWAYS" (.Values.debugHoldAlways | toString)
        "ACCEPT_DEADLINE" (.Values.deadlineSeconds | int64 | toString)
        "ACCEPT_RESULTS" (include "accept.results" .)
        "ACCEPT_IMAGE" (.Values.site.image | default "")
        "ACCEPT_EDITED" (get . "edited" | default (include "accept.edited" .) | replace "$(" "$$(")) -}}
{{- with include "accept.mountedBucket" . -}}
{{- $_ := set $all "ACCEPT_BUCKET" . -}}
{{- end -}}
{{- with include "accept.collectives" . | fromJson -}}
{{- $_ := set $all "ACCEPT_COLLECTIVES" (toJson .) -}}
{{- end -}}
{{- with get . "role" -}}
{{- $_ := set $all "ACCEPT_ROLE" . -}}
{{- end -}}
{{- if .Values.logEvents -}}
{{- $_ := set $all "ACCEPT_LOG_EVENTS" "yes" -}}
{{- end -}}
{{- if .Values.resumed -}}
{{- $_ := set $all "ACCEPT_RESUMED" "yes" -}}
{{- end -}}
{{- with $all.LD_LIBRARY_PATH -}}
{{- /* The entry script puts it before the image's own, which it would replace here. */ -}}
{{- $_ := set $all "ACCEPT_LIBRARY_PATH" . -}}
{{- end -}}
{{- range $name, $value := omit $all "ACCEPT_NODE" "ACCEPT_POD" "ACCEPT_ADDRESSES" "LD_LIBRARY_PATH" }}
- name: {{ $name | quote }}
  value: {{ include "accept.text" $value | quote }}
{{- end }}
- name: ACCEPT_NODE
  valueFrom:
    fieldRef: {apiVersion: v1, fieldPath: spec.nodeName}
- name: ACCEPT_POD
  valueFrom:
    fieldRef: {apiVersion: v1, fieldPath: metadata.name}
- name: ACCEPT_ADDRESSES
  valueFrom:
    fieldRef: {apiVersion: v1, fieldPath: status.podIPs}
{{- end -}}

{{/*
The resources, with what the machine reserves, which no queue need cover, and the claims of DRA devices. A limit is
also the request, because no request may be above it.
*/}}
{{- define "accept.resources" -}}
{{- $found := deepCopy .Values.pod.resources -}}
{{- if and .Values.pod.reserve (not .Values.site.queue) -}}
{{- $reserve := deepCopy .Values.pod.reserve -}}
{{- range $key, $_ := $found.limits -}}{{- $reserve = omit $reserve $key -}}{{- end -}}
{{- $_ := set $found "requests" (mergeOverwrite $reserve ($found.requests | default dict)) -}}
{{- end -}}
{{- $claims := default (list) $found.claims -}}
{{- range include "accept.claims" . | fromYamlArray -}}
{{- $claims = append $claims (dict "name" .name) -}}
{{- end -}}
{{- with $claims -}}{{- $_ := set $found "claims" . -}}{{- end -}}
{{- toYaml $found -}}
{{- end -}}

{{/* The claims of DRA devices, in the form of a pod. */}}
{{- define "accept.claims" -}}
{{- $full := include "accept.fullname" . -}}
{{- $found := list -}}
{{- range .Values.pod.resourceClaims -}}
{{- $found = append $found (dict "name" .name "resourceClaimTemplateName" (.template | default (printf "%s-%s" $full .name))) -}}
{{- end -}}
{{- if .Values.pod.computeDomain -}}
{{- $found = append $found (dict "name" "compute-domain-channel" "resourceClaimTemplateName" (printf "%s-channel" $full)) -}}
{{- end -}}
{{- toYaml $found -}}
{{- end -}}

{{/*
The API version of ResourceClaimTemplates: the newest one that the cluster serves. It is limited by the version
of Kubernetes, because Helm without a cluster assumes that all known versions are served.
*/}}
{{- define "accept.claimsVersion" -}}
{{- $found := "" -}}
{{- $known := list -}}
{{- range (.Files.Get "rules.yaml" | fromYaml).claimVersions -}}
{{- $known = append $known .version -}}
{{- $api := printf "resource.k8s.io/%s" .version -}}
{{- $old := semverCompare (printf "<%s.0-0" .since) $.Capabilities.KubeVersion.Version -}}
{{- if and (not $found) (not $old) ($.Capabilities.APIVersions.Has $api) -}}{{- $found = $api -}}{{- end -}}
{{- end -}}
{{- if not $found -}}
{{- fail (printf "[E-HELM-NO-CLAIMS] this machine claims devices (DRA), but the cluster serves no ResourceClaimTemplate of resource.k8s.io/%s: Kubernetes 1.34 or newer does, older ones where that API is switched on" (join " or " $known)) -}}
{{- end -}}
{{- $found -}}
{{- end -}}

{{/* `devices` of a claim. Machines use the form of v1; v1beta1 has the fields of `exactly` in the request itself. */}}
{{- define "accept.devices" -}}
{{- $devices := deepCopy .devices -}}
{{- if and (eq .version "resource.k8s.io/v1beta1") $devices.requests -}}
{{- $flat := list -}}
{{- range $devices.requests -}}
{{- $flat = append $flat (merge (omit . "exactly") (default (dict) .exactly)) -}}
{{- end -}}
{{- $_ := set $devices "requests" $flat -}}
{{- end -}}
{{- toYaml $devices -}}
{{- end -}}

{{/* Init containers, then native sidecars, which are init containers that always restart. */}}
{{- define "accept.initContainers" -}}
{{- $found := .Values.pod.initContainers -}}
{{- range .Values.pod.sidecars -}}
{{- $found = append $found (mergeOverwrite (deepCopy .) (dict "restartPolicy" "Always")) -}}
{{- end -}}
{{- toYaml $found -}}
{{- end -}}
