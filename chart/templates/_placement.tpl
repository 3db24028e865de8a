{{/* The placement of the pods on nodes. */}}

{{/*
The site's affinity, extended by the node lists, and by a rule that keeps pods on different nodes if they do
not use all GPUs of their node: one pod tests a node. Node lists use the names of nodes, because the label
kubernetes.io/hostname can differ. A rule on the name allows only one name. All rules of a term must hold, and
terms are alternatives. So there is one term for each included node, and each term has a rule for every
excluded node. This applies to each of the site's own terms.

Without a queue, `topology` becomes an affinity of the run's pods to each other. The scheduler places the first
pod as if it had none.
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
{{- $ours := dict "accept-run" (include "accept.fullname" .) -}}
{{- with get . "role" -}}
{{- /* The coordinator's own pod is elsewhere in the network. */ -}}
{{- $_ := set $ours "accept-role" . -}}
{{- end -}}
{{- $topology := default (dict) $site.topology -}}
{{- if not $site.queue -}}
{{- $together := dict "labelSelector" (dict "matchLabels" $ours) -}}
{{- $pod := default (dict) $found.podAffinity -}}
{{- with $topology.required -}}
{{- $_ := set $pod $hard (append (default (list) (get $pod $hard)) (merge (dict "topologyKey" .) $together)) -}}
{{- $_ := set $found "podAffinity" $pod -}}
{{- end -}}
{{- with $topology.preferred -}}
{{- $soft := "preferredDuringSchedulingIgnoredDuringExecution" -}}
{{- $wish := dict "weight" 100 "podAffinityTerm" (merge (dict "topologyKey" .) $together) -}}
{{- $_ := set $pod $soft (append (default (list) (get $pod $soft)) $wish) -}}
{{- $_ := set $found "podAffinity" $pod -}}
{{- end -}}
{{- end -}}
{{- if .Values.onePodPerNode -}}
{{- $apart := dict
      "labelSelector" (dict "matchLabels" $ours)
      "topologyKey" "kubernetes.io/hostname" -}}
{{- $pod := default (dict) $found.podAntiAffinity -}}
{{- $_ := set $pod $hard (append (default (list) (get $pod $hard)) $apart) -}}
{{- $_ := set $found "podAntiAffinity" $pod -}}
{{- end -}}
{{- toYaml $found -}}
{{- end -}}
