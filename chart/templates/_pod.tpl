{{/* The pod template, the same for a JobSet and a Job. */}}
{{- define "accept.pod" -}}
{{- $v := .Values -}}
{{- $full := include "accept.fullname" . -}}
metadata:
  labels:
    {{- $ours := include "accept.labels" . | fromYaml }}
    {{- toYaml (mergeOverwrite (deepCopy $v.pod.labels) $ours) | nindent 4 }}
  annotations:
    {{- toYaml (include "accept.podAnnotations" . | fromYaml) | nindent 4 }}
spec:
  restartPolicy: Never
  {{- /* When it is terminated, index 0 needs time to write its results and to notify the others. */}}
  terminationGracePeriodSeconds: 120
  schedulerName: default-scheduler
  {{- with $v.site.serviceAccount }}
  serviceAccountName: {{ . | quote }}
  {{- end }}
  {{- /* The pods do not use the API server; identities for buckets do not need this token. */}}
  automountServiceAccountToken: false
  enableServiceLinks: false
  hostNetwork: {{ $v.pod.hostNetwork }}
  dnsPolicy: {{ ternary "ClusterFirstWithHostNet" "ClusterFirst" $v.pod.hostNetwork }}
  {{- if not (include "accept.jobset" .) }}
  subdomain: {{ $full | quote }}
  {{- end }}
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
        - {{ include "accept.command" . | quote }}
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
Unpacks the rendered files and executes them. If that fails on index 0, exit code 5 (interrupted) ends the
run immediately; on other pods, exit code 20 means that the image lacks something.
*/}}
{{- define "accept.command" -}}
umask 077
leave() {
  echo "accept: $1" >&2
  [ "$JOB_COMPLETION_INDEX" = 0 ] && exit 5
  exit 20
}
command -v tar >/dev/null || leave "the image $ACCEPT_IMAGE lacks tar: build it into the image, or name another image"
tar -xf /accept/bundle/bundle.tar -C /opt/accept || leave "cannot unpack the run into /opt/accept"
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
{{- end -}}
{{- with $v.site.topology -}}
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
        "ACCEPT_SUBDOMAIN" (include "accept.fullname" .)
        "ACCEPT_NAMESPACE" .Release.Namespace
        "ACCEPT_SSH_PORT" (.Values.ssh.port | int64 | toString)
        "ACCEPT_START_SECONDS" (.Values.startSeconds | int64 | toString)
        "ACCEPT_LIFE_SECONDS" (include "accept.life" .)
        "ACCEPT_HOLD_SECONDS" (.Values.results.holdSeconds | ceil | int64 | toString)
        "ACCEPT_RESULTS" (include "accept.results" .)
        "ACCEPT_IMAGE" (.Values.site.image | default "")) -}}
{{- range $name, $value := omit $all "ACCEPT_NODE" "ACCEPT_POD" }}
- name: {{ $name | quote }}
  value: {{ include "accept.text" $value | quote }}
{{- end }}
- name: ACCEPT_NODE
  valueFrom:
    fieldRef: {apiVersion: v1, fieldPath: spec.nodeName}
- name: ACCEPT_POD
  valueFrom:
    fieldRef: {apiVersion: v1, fieldPath: metadata.name}
{{- end -}}

{{/* The resources, with the claims of DRA devices. */}}
{{- define "accept.resources" -}}
{{- $found := deepCopy .Values.pod.resources -}}
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
{{- $since := dict "v1" "1.34" "v1beta2" "1.33" "v1beta1" "1.32" -}}
{{- $found := "" -}}
{{- range list "v1" "v1beta2" "v1beta1" -}}
{{- $api := printf "resource.k8s.io/%s" . -}}
{{- $old := semverCompare (printf "<%s.0-0" (get $since .)) $.Capabilities.KubeVersion.Version -}}
{{- if and (not $found) (not $old) ($.Capabilities.APIVersions.Has $api) -}}{{- $found = $api -}}{{- end -}}
{{- end -}}
{{- if not $found -}}
{{- fail "[E-HELM-NO-CLAIMS] this machine claims devices (DRA), but the cluster serves no ResourceClaimTemplate of resource.k8s.io/v1, v1beta2 or v1beta1: Kubernetes 1.34 or newer does, older ones where that API is switched on" -}}
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
