{{/*
Every pod of the chart is made by `hapax.pod`: a role's own template says what the role needs, and this adds what all pods
have in common and what the values add to it.
*/}}

{{/*
The roles that exist with these values, as a dict of name -> dict of `values` (where the role's values are), and `token`
(whether it calls the API server). Each has a service account of its own.
*/}}
{{- define "hapax.roles" -}}
{{- $v := .Values -}}
{{- $roles := dict
      "broker" (dict "values" "broker") "coordinator" (dict "values" "coordinator") "pid" (dict "values" "pid")
      "operator" (dict "values" "operator" "token" true) "test" (dict "values" "test") -}}
{{- if $v.admin.enabled }}{{ $_ := set $roles "admin" (dict "values" "admin") }}{{ end -}}
{{- if $v.load.enabled }}{{ $_ := set $roles "load" (dict "values" "load") }}{{ end -}}
{{- if $v.security.enabled }}{{ $_ := set $roles "certificates" (dict "values" "certificates" "token" true) }}{{ end -}}
{{- if $v.etcd.enabled -}}
{{- $_ := set $roles "etcd" (dict "values" "etcd") -}}
{{- $_ := set $roles "etcd-keeper" (dict "values" "etcd.keeper" "token" true) -}}
{{- end -}}
{{- toJson $roles -}}
{{- end -}}

{{/*
What values add to the pods of one role: root, values (a path, such as etcd.keeper). A dict of `pods` and the role's own
together: maps are merged, lists follow each other; of what there can be only one, the role's own counts.
*/}}
{{- define "hapax.podValues" -}}
{{- $own := .root.Values -}}
{{- range splitList "." .values }}{{ $own = index $own . }}{{ end -}}
{{- $all := .root.Values.pods -}}
{{- $made := dict -}}
{{- range $key := list "podLabels" "podAnnotations" "nodeSelector" -}}
{{- $_ := set $made $key (include "hapax.laidOver" (list (get $all $key) (get $own $key)) | fromJson) -}}
{{- end -}}
{{- range $key := list "tolerations" "topologySpreadConstraints" "extraEnv" "extraVolumes" "extraVolumeMounts" "sidecars" "initContainers" -}}
{{- $_ := set $made $key (default list (concat (get $all $key) (default list (get $own $key)))) -}}
{{- end -}}
{{- $_ := set $made "priorityClassName" (default $all.priorityClassName (get $own "priorityClassName")) -}}
{{- $_ := set $made "affinities" (list $all.affinity (default dict (get $own "affinity"))) -}}
{{- $_ := set $made "accountAnnotations" (include "hapax.laidOver" (list $all.serviceAccount.annotations (dig "serviceAccount" "annotations" dict $own)) | fromJson) -}}
{{- $_ := set $made "image" (default dict (get $own "image")) -}}
{{- $_ := set $made "resources" (default dict (get $own "resources")) -}}
{{- toJson $made -}}
{{- end -}}

{{/* A list of two dicts -> the first one with the keys of the second laid over it. */}}
{{- define "hapax.laidOver" -}}
{{- $made := deepCopy (first .) -}}
{{- range $key, $value := default dict (last .) }}{{ $_ := set $made $key $value }}{{ end -}}
{{- toJson $made -}}
{{- end -}}

{{/* The service account of a role: root, role. */}}
{{- define "hapax.account" -}}
{{ include "hapax.fullname" .root }}-{{ .role }}
{{- end -}}

{{/*
The template of a role's pods (metadata and spec). The argument is a dict of root, role (a name of `hapax.roles`), `of` (the
name of the template of what the role needs: the pod's spec, with this same dict as its argument), and optionally component
(the role, unless there are several kinds of pods of one role), labels and annotations (dicts), claims (names of volumes
that a StatefulSet adds), repository (the default name of the role's image), apart (pods keep apart by machine) and spread
(over machines and zones).
*/}}
{{- define "hapax.pod" -}}
{{- $root := .root -}}
{{- $role := get (include "hapax.roles" $root | fromJson) .role -}}
{{- $given := include "hapax.podValues" (dict "root" $root "values" $role.values) | fromJson -}}
{{- $labels := merge (dict "app.kubernetes.io/component" (default .role .component)) (default dict .labels) (include "hapax.selector" $root | fromYaml) -}}
{{- $annotations := default dict .annotations -}}
{{- with $given.accountAnnotations -}}
{{- /* A pod has what its account gives it from its start on. */ -}}
{{- $annotations = merge (dict "hapax.dev/service-account" (toJson . | sha256sum)) $annotations -}}
{{- end -}}
{{- $spec := include .of . | fromYaml -}}
{{- if hasKey $spec "Error" }}{{ fail (printf "%s: %s" .of $spec.Error) }}{{ end -}}
{{- include "hapax.podCheck" (dict "root" $root "at" $role.values "given" $given "spec" $spec "labels" $labels "annotations" $annotations "claims" (default list .claims)) -}}

{{- $image := $given.image -}}
{{- if and .repository (not $image.repository) }}{{ $image = set $image "repository" .repository }}{{ end -}}
{{- $containers := list -}}
{{- range $spec.containers -}}
{{- $container := include "hapax.laidOver" (list (include "hapax.container" (dict "root" $root "image" $image) | fromYaml) .) | fromJson -}}
{{- $_ := set $container "resources" $given.resources -}}
{{- with concat (default list .env) $given.extraEnv }}{{ $_ := set $container "env" . }}{{ end -}}
{{- with concat (default list .volumeMounts) $given.extraVolumeMounts }}{{ $_ := set $container "volumeMounts" . }}{{ end -}}
{{- $containers = append $containers $container -}}
{{- end -}}
{{- $first := $given.initContainers -}}
{{- $beside := $given.sidecars -}}
{{- if eq (default "Always" $spec.restartPolicy) "Never" -}}
{{- /* A pod that does its work and ends would wait for them without end, unless Kubernetes knows what they are. */ -}}
{{- range $beside }}{{ $first = append $first (set (deepCopy .) "restartPolicy" "Always") }}{{ end -}}
{{- $beside = list -}}
{{- end -}}
{{- range $spec.initContainers -}}
{{- $first = append $first (include "hapax.laidOver" (list (include "hapax.container" (dict "root" $root "image" dict) | fromYaml) .) | fromJson) -}}
{{- end -}}

{{- $affinity := dict -}}
{{- if .apart }}{{ $affinity = include "hapax.apart" (dict "root" $root "labels" ($labels | toJson)) | fromYaml }}{{ end -}}
{{- range $more := $given.affinities }}{{ $affinity = include "hapax.bothAffinities" (list $affinity $more) | fromJson }}{{ end -}}
{{- $spread := list -}}
{{- if .spread }}{{ $spread = include "hapax.spread" (dict "labels" ($labels | toJson) "zone" (ternary $root.Values.broker.rack.topologyKey "" (eq .role "broker"))) | fromYamlArray }}{{ end -}}
{{- with $given.topologySpreadConstraints -}}
{{- $spread = list -}}
{{- range . -}}
{{- $spread = append $spread (include "hapax.laidOver" (list (dict "labelSelector" (dict "matchLabels" $labels)) .) | fromJson) -}}
{{- end -}}
{{- end -}}

{{- $common := dict
      "serviceAccountName" (include "hapax.account" (dict "root" $root "role" .role))
      "enableServiceLinks" false
      "securityContext" (include "hapax.podSecurity" $root | fromYaml)
      "imagePullSecrets" (default list (concat $root.Values.image.pullSecrets (default list $given.image.pullSecrets)))
      "nodeSelector" $given.nodeSelector
      "tolerations" $given.tolerations -}}
{{- if not $role.token }}{{ $_ := set $common "automountServiceAccountToken" false }}{{ end -}}
{{- with $given.priorityClassName }}{{ $_ := set $common "priorityClassName" . }}{{ end -}}
{{- with $affinity }}{{ $_ := set $common "affinity" . }}{{ end -}}
{{- with $spread }}{{ $_ := set $common "topologySpreadConstraints" . }}{{ end -}}
{{- with $first }}{{ $_ := set $common "initContainers" . }}{{ end -}}
{{- $_ := set $common "containers" (concat $containers $beside) -}}
{{- with concat (default list $spec.volumes) $given.extraVolumes }}{{ $_ := set $common "volumes" . }}{{ end -}}
{{- $metadata := dict "labels" (merge (dict) $labels $given.podLabels) "annotations" (merge (dict) $annotations $given.podAnnotations) -}}
{{- dict "metadata" $metadata "spec" (include "hapax.laidOver" (list $spec $common) | fromJson) | toYaml -}}
{{- end -}}

{{/* What all containers of the chart have in common, where they say nothing else: root, image (a role's, or none). */}}
{{- define "hapax.container" -}}
{{- $image := deepCopy .image -}}
{{- range $key, $value := pick .root.Values.image "registry" "repository" "tag" "pullPolicy" -}}
{{- if not (get $image $key) }}{{ $_ := set $image $key $value }}{{ end -}}
{{- end -}}
image: {{ include "hapax.imageOf" (dict "root" .root "image" $image) | quote }}
imagePullPolicy: {{ $image.pullPolicy }}
securityContext: {{- include "hapax.containerSecurity" .root | nindent 2 }}
{{- end -}}

{{/*
A list of two affinities -> both: terms that keep pods together or apart are wanted together. Nodes are alternatives, so
that the second one's count alone.
*/}}
{{- define "hapax.bothAffinities" -}}
{{- $both := deepCopy (first .) -}}
{{- range $kind, $terms := last . -}}
{{- if eq $kind "nodeAffinity" -}}
{{- $_ := set $both $kind $terms -}}
{{- else -}}
{{- $former := default dict (get $both $kind) -}}
{{- range $when, $more := $terms -}}
{{- $_ := set $former $when (concat (default list (get $former $when)) $more) -}}
{{- end -}}
{{- $_ := set $both $kind $former -}}
{{- end -}}
{{- end -}}
{{- toJson $both -}}
{{- end -}}

{{/*
Refuses what would silently replace something of the chart's, or be replaced by it: at (the path of the role's values),
given, spec, labels, annotations, claims.
*/}}
{{- define "hapax.podCheck" -}}
{{- $at := .at -}}
{{- $given := .given -}}
{{- $labels := .labels -}}
{{- $annotations := .annotations -}}
{{- range $key, $_ := $given.podLabels -}}
{{- if or (hasKey $labels $key) (hasPrefix "hapax.dev/" $key) }}{{ fail (printf "%s.podLabels: %s is the chart's own" $at $key) }}{{ end -}}
{{- end -}}
{{- range $key, $_ := $given.podAnnotations -}}
{{- if or (hasKey $annotations $key) (hasPrefix "hapax.dev/" $key) }}{{ fail (printf "%s.podAnnotations: %s is the chart's own" $at $key) }}{{ end -}}
{{- end -}}

{{- $main := first .spec.containers -}}
{{- $env := list -}}
{{- range $main.env }}{{ $env = append $env .name }}{{ end -}}
{{- range $given.extraEnv -}}
{{- if has .name $env }}{{ fail (printf "%s.extraEnv: %s is set already, by the chart or by another value" $at .name) }}{{ end -}}
{{- $env = append $env .name -}}
{{- if and $.root.Values.security.enabled (hasPrefix "HAPAX_" .name) -}}
{{- include "hapax.noOverride" (dict "given" (dict (trimPrefix "HAPAX_" .name | lower | replace "_" ".") "")) -}}
{{- end -}}
{{- end -}}

{{- $volumes := .claims -}}
{{- range .spec.volumes }}{{ $volumes = append $volumes .name }}{{ end -}}
{{- range $given.extraVolumes -}}
{{- if has .name $volumes }}{{ fail (printf "%s.extraVolumes: there is a volume %s already" $at .name) }}{{ end -}}
{{- $volumes = append $volumes .name -}}
{{- end -}}

{{- $paths := list -}}
{{- range $main.volumeMounts }}{{ $paths = append $paths .mountPath }}{{ end -}}
{{- range $given.extraVolumeMounts -}}
{{- $path := printf "%s/" (trimSuffix "/" (clean .mountPath)) -}}
{{- range $other := $paths -}}
{{- if or (hasPrefix $path (printf "%s/" $other)) (hasPrefix (printf "%s/" $other) $path) -}}
{{- fail (printf "%s.extraVolumeMounts: %s would hide, or be hidden by, what is mounted at %s" $at (trimSuffix "/" $path) $other) -}}
{{- end -}}
{{- end -}}
{{- $paths = append $paths (trimSuffix "/" $path) -}}
{{- end -}}

{{- $containers := list -}}
{{- range concat .spec.containers (default list .spec.initContainers) }}{{ $containers = append $containers .name }}{{ end -}}
{{- range concat $given.sidecars $given.initContainers -}}
{{- if has .name $containers }}{{ fail (printf "%s: there is a container %s already: give sidecars and initContainers other names" $at .name) }}{{ end -}}
{{- $containers = append $containers .name -}}
{{- end -}}
{{- end -}}
