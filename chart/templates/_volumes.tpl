{{/* Volumes and mounts: of the chart, the machine, the site, and for results. */}}

{{/* Whether the chart must provide /dev/shm ("true" or ""), because no mount does. */}}
{{- define "accept.ownShm" -}}
{{- $taken := false -}}
{{- range .Values.pod.volumeMounts -}}
{{- if eq .mountPath "/dev/shm" -}}{{- $taken = true -}}{{- end -}}
{{- end -}}
{{- if not $taken -}}true{{- end -}}
{{- end -}}

{{- define "accept.volumeMounts" -}}
- {name: accept-bundle, mountPath: /accept/bundle, readOnly: true}
- {name: accept-key, mountPath: /accept/key, readOnly: true}
- {name: accept-run, mountPath: /opt/accept}
{{- if .Values.site.readNodes }}
- {name: accept-node-reader, mountPath: /accept/node-reader, readOnly: true}
{{- end }}
{{- if include "accept.ownShm" . }}
- {name: accept-shm, mountPath: /dev/shm}
{{- end }}
{{- if .Values.results.volume }}
- {name: accept-results, mountPath: /accept/results}
{{- end }}
{{- with .Values.pod.volumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "accept.volumes" -}}
- name: accept-bundle
  projected:
    defaultMode: 292 # r--r--r--
    sources:
      - configMap:
          name: {{ include "accept.fullname" . | quote }}
          items:
            - {key: plan.json, path: plan.json}
            - {key: settings.sh, path: settings.sh}
            {{- range $path, $_ := .Values.launcher.scripts }}
            - {key: {{ base $path | quote }}, path: {{ $path | quote }}, mode: 365} # r-xr-xr-x
            {{- end }}
      {{- /* `accept run` makes it beside the release: Helm's record of the release has too little room for it. */}}
      - configMap:
          name: {{ printf "%s-positions" (include "accept.fullname" .) | quote }}
          optional: true
      {{- if ne .Values.site.code "image" }}
      - configMap:
          name: {{ printf "%s-programs" (include "accept.fullname" .) | quote }}
      - configMap:
          name: {{ printf "%s-bindings" (include "accept.fullname" .) | quote }}
      - configMap:
          name: {{ printf "%s-coordinator" (include "accept.fullname" .) | quote }}
      {{- end }}
- name: accept-key
  secret:
    secretName: {{ include "accept.secret" . | quote }}
    defaultMode: 256 # r--------
    items:
      - {key: ssh-privatekey, path: ssh-privatekey}
- name: accept-run
  emptyDir: {}
{{- if .Values.site.readNodes }}
- name: accept-node-reader
  projected:
    defaultMode: 292 # r--r--r--
    sources:
      - serviceAccountToken: {path: token, expirationSeconds: 3600}
      - configMap:
          name: kube-root-ca.crt
          items:
            - {key: ca.crt, path: ca.crt}
{{- end }}
{{- if include "accept.ownShm" . }}
- name: accept-shm
  emptyDir:
    medium: Memory
    {{- with .Values.pod.sharedMemory }}
    sizeLimit: {{ . | quote }}
    {{- end }}
{{- end }}
{{- with .Values.results.volume }}
{{- $volume := mergeOverwrite (deepCopy .) (dict "name" "accept-results") }}
{{- if and (eq (dig "csi" "driver" "" .) "gcsfuse.csi.storage.gke.io") $.Values.pod.hostNetwork }}
{{- /* With hostNetwork, the mount would use the node's identity instead of the pod's. */}}
{{- $given := dig "csi" "volumeAttributes" (dict) $volume }}
{{- $_ := set $volume.csi "volumeAttributes" (mergeOverwrite (dict "hostNetworkPodKSA" "true") $given) }}
{{- end }}
{{ toYaml (list $volume) }}
{{- end }}
{{- with .Values.pod.volumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}
