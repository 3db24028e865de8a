{{/* Which nodes the pods run on. */}}

{{- define "accept.nodeSelector" -}}
{{- $found := mergeOverwrite (deepCopy .Values.machine.nodeSelector) .Values.site.nodeSelector -}}
{{- if .Values.site.flexStart -}}
{{- $_ := set $found "cloud.google.com/gke-flex-start" "true" -}}
{{- end -}}
{{- toYaml $found -}}
{{- end -}}

{{- define "accept.tolerations" -}}
{{- $found := concat .Values.machine.tolerations .Values.site.tolerations -}}
{{- if .Values.site.spot -}}
{{- $found = append $found (dict "key" "cloud.google.com/gke-spot" "operator" "Exists") -}}
{{- $found = append $found (dict "key" "kubernetes.azure.com/scalesetpriority" "operator" "Exists") -}}
{{- end -}}
{{- if .Values.site.flexStart -}}
{{- $found = append $found (dict "key" "cloud.google.com/gke-flex-start" "operator" "Exists") -}}
{{- $found = append $found (dict "key" "cloud.google.com/gke-queued" "operator" "Exists") -}}
{{- end -}}
{{- $gpus := dict "key" "nvidia.com/gpu" "operator" "Exists" -}}
{{- if and (dig "limits" "nvidia.com/gpu" "" (include "accept.resources" . | fromYaml)) (not (has $gpus $found)) -}}
{{- $found = append $found $gpus -}}
{{- end -}}
{{- toYaml $found -}}
{{- end -}}

{{/*
The site's affinity, and ours on top. Node lists are expressions of one term, as terms are alternatives: each
of the site's own terms gets them. Pods that do not fill their node keep apart from each other: a node is
tested by one pod.
*/}}
{{- define "accept.affinity" -}}
{{- $site := .Values.site -}}
{{- $found := deepCopy $site.affinity -}}
{{- $rules := list -}}
{{- with $site.includeNodes -}}
{{- $rules = append $rules (dict "key" "kubernetes.io/hostname" "operator" "In" "values" .) -}}
{{- end -}}
{{- with $site.excludeNodes -}}
{{- $rules = append $rules (dict "key" "kubernetes.io/hostname" "operator" "NotIn" "values" .) -}}
{{- end -}}
{{- $hard := "requiredDuringSchedulingIgnoredDuringExecution" -}}
{{- if $rules -}}
{{- $node := default (dict) $found.nodeAffinity -}}
{{- $terms := dig $hard "nodeSelectorTerms" (list) $node -}}
{{- $each := list -}}
{{- range default (list (dict)) $terms -}}
{{- $each = append $each (mergeOverwrite (deepCopy .) (dict "matchExpressions" (concat (default (list) .matchExpressions) $rules))) -}}
{{- end -}}
{{- $_ := set $node $hard (dict "nodeSelectorTerms" $each) -}}
{{- $_ := set $found "nodeAffinity" $node -}}
{{- end -}}
{{- $gpus := dig "limits" "nvidia.com/gpu" 0 (include "accept.resources" . | fromYaml) -}}
{{- if or (not $gpus) $site.gpusPerPod -}}
{{- $apart := dict
      "labelSelector" (dict "matchLabels" (dict "accept-run" (include "accept.fullname" .)))
      "topologyKey" "kubernetes.io/hostname" -}}
{{- $pod := default (dict) $found.podAntiAffinity -}}
{{- $_ := set $pod $hard (append (default (list) (get $pod $hard)) $apart) -}}
{{- $_ := set $found "podAntiAffinity" $pod -}}
{{- end -}}
{{- toYaml $found -}}
{{- end -}}
