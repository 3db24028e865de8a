{{/* The placement of the pods on nodes. */}}

{{/*
The site's affinity, extended by the node lists, and by a rule that keeps pods on different nodes if they do
not use all GPUs of their node: one pod tests a node. Node lists use the names of nodes, because the label
kubernetes.io/hostname can differ. A rule on the name allows only one name. All rules of a term must hold, and
terms are alternatives. So there is one term for each included node, and each term has a rule for every
excluded node. This applies to each of the site's own terms.
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
{{- if .Values.onePodPerNode -}}
{{- $apart := dict
      "labelSelector" (dict "matchLabels" (dict "accept-run" (include "accept.fullname" .)))
      "topologyKey" "kubernetes.io/hostname" -}}
{{- $pod := default (dict) $found.podAntiAffinity -}}
{{- $_ := set $pod $hard (append (default (list) (get $pod $hard)) $apart) -}}
{{- $_ := set $found "podAntiAffinity" $pod -}}
{{- end -}}
{{- toYaml $found -}}
{{- end -}}
