{{/* The placement of the pods on nodes. */}}

{{- define "accept.nodeSelector" -}}
{{- $found := mergeOverwrite (deepCopy .Values.machine.nodeSelector) .Values.site.nodeSelector -}}
{{- if .Values.site.flexStart -}}
{{- $found = mergeOverwrite $found (.Files.Get "placement.yaml" | fromYaml).flexStart.nodeSelector -}}
{{- end -}}
{{- toYaml $found -}}
{{- end -}}

{{- define "accept.tolerations" -}}
{{- $more := .Files.Get "placement.yaml" | fromYaml -}}
{{- $found := concat .Values.machine.tolerations .Values.site.tolerations -}}
{{- if .Values.site.spot -}}{{- $found = concat $found $more.spot.tolerations -}}{{- end -}}
{{- if .Values.site.flexStart -}}{{- $found = concat $found $more.flexStart.tolerations -}}{{- end -}}
{{- if dig "limits" "nvidia.com/gpu" "" (include "accept.resources" . | fromYaml) -}}
{{- $found = concat $found $more.gpus.tolerations -}}
{{- end -}}
{{- toYaml (uniq $found) -}}
{{- end -}}

{{/*
The site's affinity, extended by the node lists and by one pod for each node. Node lists use the names of
nodes, because the label kubernetes.io/hostname can differ. A rule on the name allows only one name. All
rules of a term must hold, and terms are alternatives. So there is one term for each included node, and
each term has a rule for every excluded node. This applies to each of the site's own terms. If pods do not
use all GPUs of their node, anti-affinity keeps them on different nodes: one pod tests a node.
*/}}
{{- define "accept.affinity" -}}
{{- $site := .Values.site -}}
{{- $found := deepCopy $site.affinity -}}
{{- $named := list -}}
{{- range $site.includeNodes -}}
{{- if not (has . $site.excludeNodes) -}}
{{- $named = append $named (list (dict "key" "metadata.name" "operator" "In" "values" (list .))) -}}
{{- end -}}
{{- end -}}
{{- if and $site.excludeNodes (not $site.includeNodes) -}}
{{- $rules := list -}}
{{- range $site.excludeNodes -}}
{{- $rules = append $rules (dict "key" "metadata.name" "operator" "NotIn" "values" (list .)) -}}
{{- end -}}
{{- $named = list $rules -}}
{{- end -}}
{{- $hard := "requiredDuringSchedulingIgnoredDuringExecution" -}}
{{- if or $site.includeNodes $site.excludeNodes -}}
{{- $node := default (dict) $found.nodeAffinity -}}
{{- $terms := dig $hard "nodeSelectorTerms" (list) $node -}}
{{- $each := list -}}
{{- range $term := default (list (dict)) $terms -}}
{{- range $named -}}
{{- $each = append $each (mergeOverwrite (deepCopy $term) (dict "matchFields" (concat (default (list) $term.matchFields) .))) -}}
{{- end -}}
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
