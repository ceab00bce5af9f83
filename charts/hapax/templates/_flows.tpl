{{/*
Every connection between pods: `to` whom, on which port, `from` which of the release's own pods, and from which `peers`
outside the release (a list of peers of Kubernetes' network policies; `open: true` with an empty list: from everywhere).
templates/network.yaml makes the policies of both directions from it, and docs/kubernetes.md has it as a table. What is
not here is denied. Nodes of the first phase take clients' calls at 9094, too (`formerCalls`).
*/}}
{{- define "hapax.flows" -}}
{{- $v := .Values -}}
{{- $secure := $v.security.enabled -}}
{{- $kafka := list "broker" "coordinator" -}}
{{- $nodes := list "broker" "coordinator" "pid" "operator" -}}
{{- $programs := list "operator" "test" -}}
{{- if $v.admin.enabled }}{{ $programs = append $programs "admin" }}{{ end -}}
{{- if $v.load.enabled }}{{ $programs = concat $programs (list "load-master" "load-worker") }}{{ end -}}
{{- $clients := $v.networkPolicy.clients -}}
{{- if $clients -}}
{{- with (include "hapax.sparkNamespaces" . | fromJson).names -}}
{{- $spark := dict "namespaceSelector" (dict "matchExpressions" (list (dict "key" "kubernetes.io/metadata.name" "operator" "In" "values" .))) "podSelector" (dict "matchLabels" (dict "app.kubernetes.io/name" "hapax-spark")) -}}
{{- $clients = append $clients $spark -}}
{{- end -}}
{{- with $v.mirrors.namespaces -}}
{{- $copiers := dict "namespaceSelector" (dict "matchExpressions" (list (dict "key" "kubernetes.io/metadata.name" "operator" "In" "values" .))) "podSelector" (dict "matchLabels" (dict "app.kubernetes.io/name" "hapax-copy")) -}}
{{- $clients = append $clients $copiers -}}
{{- end -}}
{{- end -}}
{{- $flows := list
      (dict "port" 9092 "to" $kafka "from" (ternary $programs (concat (list "broker" "coordinator") $programs) $secure) "peers" $clients "open" true)
      (ternary (dict "port" 9094 "to" $nodes "from" (concat $nodes (without $programs "operator")) "peers" $clients "open" true) (dict "port" 9094 "to" $nodes "from" $nodes "peers" list) $v.formerCalls)
      (dict "port" 9096 "to" $nodes "from" $programs "peers" $clients "open" true)
      (dict "port" 9097 "to" $kafka "from" $nodes "peers" list)
      (dict "port" 8080 "to" (ternary (append $nodes "admin") $nodes $v.admin.enabled) "from" list "peers" $v.networkPolicy.metrics "open" (not $secure)) -}}
{{- if $secure -}}
{{- $flows = append $flows (dict "port" 9093 "to" $kafka "from" $nodes "peers" list) -}}
{{- $flows = append $flows (dict "port" 9098 "to" $kafka "from" list "peers" $clients "open" true) -}}
{{- end -}}
{{- if $v.external.enabled -}}
{{- $flows = append $flows (dict "port" 9095 "to" $kafka "from" list "peers" $v.networkPolicy.external "open" true) -}}
{{- end -}}
{{- if $v.etcd.enabled -}}
{{- $users := $nodes -}}
{{- if $v.admin.enabled }}{{ $users = append $users "admin" }}{{ end -}}
{{- if $secure }}{{ $users = append $users "certificates" }}{{ end -}}
{{- $flows = concat $flows (list
      (dict "port" 2379 "to" (list "etcd") "from" (append $users "etcd-keeper") "peers" list)
      (dict "port" 2380 "to" (list "etcd") "from" (list "etcd") "peers" list)
      (dict "port" 2381 "to" (list "etcd") "from" list "peers" $v.networkPolicy.metrics "open" (not $secure))
      (dict "port" 8081 "to" (list "etcd-keeper") "from" list "peers" $v.networkPolicy.metrics "open" (not $secure))) -}}
{{- end -}}
{{- if $v.admin.enabled -}}
{{- $flows = append $flows (dict "port" 8090 "to" (list "admin") "from" (ternary (list "load-master" "load-worker") list $v.load.enabled) "peers" $v.admin.clients "open" true) -}}
{{- end -}}
{{- if $v.load.enabled -}}
{{- $flows = concat $flows (list
      (dict "port" 5557 "to" (list "load-master") "from" (list "load-worker") "peers" list)
      (dict "port" 8089 "to" (list "load-master") "from" list "peers" $v.networkPolicy.metrics "open" (not $secure))) -}}
{{- end -}}
{{- dict "flows" $flows | toJson -}}
{{- end -}}
