{{/* Names, labels, and the parts that all Hapax pods share. */}}

{{- define "hapax.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "hapax.selector" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride | trunc 63 | quote }}
app.kubernetes.io/instance: {{ .Release.Name | trunc 63 | quote }}
{{- end -}}

{{- define "hapax.labels" -}}
{{ include "hapax.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{/*
The reference of an image: root, image (a dict of registry, repository, tag, pullPolicy). A name without a registry means
one of docker.io, which belongs to someone else. It is refused, unless nodes never fetch it.
*/}}
{{- define "hapax.imageOf" -}}
{{- $image := .image -}}
{{- $repository := $image.repository -}}
{{- if ne (include "hapax.hasRegistry" $repository) "true" -}}
{{- if $image.registry -}}
{{- $repository = printf "%s/%s" (trimSuffix "/" $image.registry) $repository -}}
{{- else if ne $image.pullPolicy "Never" -}}
{{- fail (printf "the image %s has no registry, so that nodes would fetch someone else's from docker.io: set image.registry, such as registry.example/team, or image.pullPolicy=Never if it is loaded on every node" $repository) -}}
{{- end -}}
{{- end -}}
{{ $repository }}:{{ default .root.Chart.AppVersion $image.tag }}
{{- end -}}

{{- define "hapax.hasRegistry" -}}
{{- $first := splitList "/" . | first -}}
{{- and (contains "/" .) (or (contains "." $first) (contains ":" $first) (eq $first "localhost")) -}}
{{- end -}}

{{- define "hapax.bootstrap" -}}
{{ include "hapax.fullname" . }}.{{ .Release.Namespace }}.svc.{{ .Values.clusterDomain }}:9092
{{- end -}}

{{/* For clients with certificates. */}}
{{- define "hapax.certifiedBootstrap" -}}
{{ include "hapax.fullname" . }}.{{ .Release.Namespace }}.svc.{{ .Values.clusterDomain }}:9098
{{- end -}}

{{/*
The namespaces of Spark jobs, as a list {names, own}; own: the release's, which it creates. Jobs of a former release may
be in its own namespace, where their account must not vanish below them.
*/}}
{{- define "hapax.sparkNamespaces" -}}
{{- $own := empty .Values.spark.namespaces -}}
{{- $name := printf "%s-spark" (include "hapax.fullname" .) -}}
{{- if ne (include "hapax.fullname" .) .Release.Namespace -}}
{{- $name = printf "%s-%s" $name .Release.Namespace -}}
{{- end -}}
{{- if and $own (gt (len $name) 63) }}{{ fail (printf "%s is too long for a namespace: set spark.namespaces" $name) }}{{ end -}}
{{- $names := default (list $name) .Values.spark.namespaces -}}
{{- if and .Values.spark.enabled $own .Release.IsUpgrade -}}
{{- range list (dict "version" "v1alpha2" "kind" "SparkJob") (dict "version" "v1alpha1" "kind" "TransactionalProducer") -}}
{{- if $.Capabilities.APIVersions.Has (printf "hapax.dev/%s/%s" .version .kind) -}}
{{- range (lookup (printf "hapax.dev/%s" .version) .kind $.Release.Namespace "").items -}}
{{- if or (eq .kind "SparkJob") (hasKey .spec "spark") -}}
{{- fail (printf "the namespace %s has Spark jobs (%s %s), but jobs now have the namespace %s by default: set spark.namespaces={%s} to leave them where they are" $.Release.Namespace .kind .metadata.name (first $names) $.Release.Namespace) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- dict "names" (ternary $names list .Values.spark.enabled) "own" $own | toJson -}}
{{- end -}}

{{/* Where Users' Secrets are, as JSON {names}. Those of Mirrors are among them: copiers log in. */}}
{{- define "hapax.userNamespaces" -}}
{{- $names := default (list .Release.Namespace) .Values.users.namespaces -}}
{{- if .Values.security.enabled }}{{ $names = concat $names .Values.mirrors.namespaces | uniq }}{{ end -}}
{{- dict "names" $names | toJson -}}
{{- end -}}

{{/* The namespaces that the operator watches, as JSON {names}; none: all. Those of Spark jobs and Mirrors are among them. */}}
{{- define "hapax.watched" -}}
{{- $names := .Values.operator.watchNamespaces -}}
{{- if $names }}{{ $names = concat $names (include "hapax.sparkNamespaces" . | fromJson).names .Values.mirrors.namespaces | uniq }}{{ end -}}
{{- dict "names" $names | toJson -}}
{{- end -}}

{{- define "hapax.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "hapax.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{/* Spreads the pods of a role over machines, if there are enough, and over zones, or the values of another label (zone). */}}
{{- define "hapax.spread" -}}
- maxSkew: 1
  topologyKey: {{ default "topology.kubernetes.io/zone" .zone }}
  whenUnsatisfiable: ScheduleAnyway
  labelSelector: {matchLabels: {{ .labels }}}
- maxSkew: 1
  topologyKey: kubernetes.io/hostname
  whenUnsatisfiable: ScheduleAnyway
  labelSelector: {matchLabels: {{ .labels }}}
{{- end -}}

{{/* Pod anti-affinity per machine for these labels: preferred (soft) or required (hard). */}}
{{- define "hapax.apart" -}}
podAntiAffinity:
  {{- if eq .root.Values.antiAffinity "hard" }}
  requiredDuringSchedulingIgnoredDuringExecution:
    - {topologyKey: kubernetes.io/hostname, labelSelector: {matchLabels: {{ .labels }}}}
  {{- else }}
  preferredDuringSchedulingIgnoredDuringExecution:
    - weight: 100
      podAffinityTerm: {topologyKey: kubernetes.io/hostname, labelSelector: {matchLabels: {{ .labels }}}}
  {{- end }}
{{- end -}}

{{/*
The size in a StatefulSet's claim templates, of name and storage (values). Templates cannot be changed, so one that is
there keeps its size; the annotation hapax.dev/volume-size has the wanted one, to which claims are expanded. Without a
Kubernetes cluster to look at (helm template), it is storage.templateSize, or the wanted one.
*/}}
{{- define "hapax.templateSize" -}}
{{- $size := default .storage.size .storage.templateSize -}}
{{- if not .storage.templateSize -}}
{{- $live := lookup "apps/v1" "StatefulSet" .root.Release.Namespace .name -}}
{{- range dig "spec" "volumeClaimTemplates" list ($live | default dict) -}}
{{- if eq .metadata.name "data" -}}
{{- $size = .spec.resources.requests.storage -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{ $size }}
{{- end -}}

{{/*
A role's workload. The argument is a dict of root, role, values, module, first, claims (names of the volumes that it stores data on) and kafka
(whether Kafka clients connect). Roles with fixed node ids are a StatefulSet, whose ordinals start at the role's first node
id, so that a pod's index is its node id. The others are a Deployment: its pods are replaced elsewhere when their machine
fails, and take a free id.
*/}}
{{- define "hapax.role" -}}
{{- $root := .root -}}
{{- $name := printf "%s-%s" (include "hapax.fullname" $root) .role -}}
{{- $labels := merge (dict "app.kubernetes.io/component" .role) (include "hapax.selector" $root | fromYaml) -}}
apiVersion: apps/v1
kind: {{ ternary "StatefulSet" "Deployment" .kafka }}
metadata:
  name: {{ $name | quote }}
  namespace: {{ $root.Release.Namespace | quote }}
  labels:
    {{- include "hapax.labels" $root | nindent 4 }}
    app.kubernetes.io/component: {{ .role }}
  {{- if .claims }}
  # A broker may be removed only when it holds no replica, so the operator sets the number, never this manifest. A
  # BrokerPool of this name has the wanted number, and follows this value when it changes.
  annotations:
    hapax.dev/replicas: {{ .values.replicas | quote }}
    hapax.dev/security: {{ $root.Values.security.enabled | quote }}
    hapax.dev/etcd: {{ ternary "own" "external" $root.Values.etcd.enabled }}
    hapax.dev/volume-size: {{ .values.storage.size | quote }}
spec:
  {{- else }}
spec:
  replicas: {{ .values.replicas }}
  {{- end }}
  minReadySeconds: {{ .values.minReadySeconds }}
  {{- if .kafka }}
  serviceName: {{ $name | quote }}
  podManagementPolicy: Parallel
  # The operator replaces the pods, one at a time, while everything else is ready and in sync.
  updateStrategy: {type: OnDelete}
  ordinals: {start: {{ .first }}}
  {{- else if eq $root.Values.antiAffinity "hard" }}
  # A surge pod would stay pending forever if every machine already runs a pod of the role.
  strategy: {type: RollingUpdate, rollingUpdate: {maxUnavailable: 1, maxSurge: 0}}
  {{- else }}
  strategy: {type: RollingUpdate, rollingUpdate: {maxUnavailable: 0, maxSurge: 1}}
  {{- end }}
  selector:
    matchLabels: {{ $labels | toJson }}
  {{- if .claims }}
  persistentVolumeClaimRetentionPolicy: {whenDeleted: Retain, whenScaled: Retain}
  volumeClaimTemplates:
    - metadata:
        name: data
        labels: {{ $labels | toJson }}
      spec:
        accessModes: [ReadWriteOnce]
        {{- with .values.storage.className }}
        storageClassName: {{ . | quote }}
        {{- end }}
        resources: {requests: {storage: {{ include "hapax.templateSize" (dict "root" $root "name" $name "storage" .values.storage) }}}}
  {{- end }}
  template:
    {{- $pod := merge (dict "of" "hapax.rolePod" "apart" true "spread" true) . }}
    {{- if eq .role "operator" }}
    {{- /* The operator reads its file once. */}}
    {{- $_ := set $pod "annotations" (dict "hapax.dev/access" (include "hapax.access" $root | sha256sum)) }}
    {{- end }}
    {{- include "hapax.pod" $pod | nindent 4 }}
{{- end -}}

{{/* What the pods of `hapax.role` need. */}}
{{- define "hapax.rolePod" -}}
{{- $root := .root -}}
{{- $name := printf "%s-%s" (include "hapax.fullname" $root) .role -}}
{{- $secure := $root.Values.security.enabled -}}
{{- $scheme := include "hapax.scheme" $root }}
      terminationGracePeriodSeconds: {{ .values.terminationGracePeriodSeconds }}
      containers:
        - name: {{ .role }}
          command: [python3, -m, {{ .module }}]
          {{- if eq .role "operator" }}
          args:
            - --brokers
            - {{ $root.Release.Namespace }}/{{ include "hapax.fullname" $root }}-broker
            - --coordinators
            - {{ $root.Release.Namespace }}/{{ include "hapax.fullname" $root }}-coordinator
            - --access
            - /etc/hapax-access/access.json
            {{- range (include "hapax.watched" $root | fromJson).names }}
            - --namespace
            - {{ . | quote }}
            {{- end }}
            - --cluster
            - {{ printf "%s.%s" $root.Release.Namespace (include "hapax.fullname" $root) | quote }}
            {{- if include "hapax.outsideFound" $root }}
            - --outside
            - app.kubernetes.io/instance={{ $root.Release.Name | trunc 63 }}
            {{- end }}
            {{- with $root.Values.broker.rack.topologyKey }}
            - --rack-label
            - {{ . | quote }}
            {{- end }}
            - --spark-account
            - {{ include "hapax.fullname" $root }}-spark
            {{- if $secure }}
            - --client-config
            - /etc/hapax/client/mounted.properties
            {{- end }}
          {{- end }}
          env:
            {{- if .kafka }}
            - {name: POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
            - name: HAPAX_NODE_ID
              valueFrom: {fieldRef: {fieldPath: "metadata.labels['apps.kubernetes.io/pod-index']"}}
            {{- $host := printf "$(POD_NAME).%s.%s.svc.%s" $name $root.Release.Namespace $root.Values.clusterDomain }}
            - {name: HAPAX_RPC_ADVERTISED, value: "{{ $host }}:9094"}
            - {name: HAPAX_PUBLIC_RPC_ADVERTISED, value: "{{ $host }}:9096"}
            - {name: HAPAX_FRAMES_ADVERTISED, value: "{{ $host }}:9097"}
            {{- $here := printf "$(POD_NAME).%s.%s.svc.%s" $name $root.Release.Namespace $root.Values.clusterDomain }}
            {{- $listen := ternary "INTERNAL://0.0.0.0:9093,CLIENTS://0.0.0.0:9092,CERTIFICATES://0.0.0.0:9098" "PLAINTEXT://0.0.0.0:9092" $secure }}
            {{- $told := ternary (printf "INTERNAL://%s:9093,CLIENTS://%s:9092,CERTIFICATES://%s:9098" $here $here $here) (printf "PLAINTEXT://%s:9092" $here) $secure }}
            {{- if $root.Values.external.enabled }}
            - {name: HOST_IP, valueFrom: {fieldRef: {fieldPath: status.hostIP}}}
            {{- $listen = printf "%s,EXTERNAL://0.0.0.0:9095" $listen }}
            {{- $told = printf "%s,%s" $told (include "hapax.outside" (dict "root" $root "role" .role)) }}
            {{- end }}
            - {name: HAPAX_LISTENERS, value: {{ $listen | quote }}}
            - {name: HAPAX_ADVERTISED_LISTENERS, value: {{ $told | quote }}}
            {{- else }}
            - {name: POD_IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
            - {name: HAPAX_NODE_ID, value: {{ .first | quote }}}
            - {name: HAPAX_NODE_ID_GENERATION_ENABLE, value: "true"}
            - {name: HAPAX_RPC_ADVERTISED, value: "$(POD_IP):9094"}
            {{- if $secure }}
            # The certificate names the service, since it cannot name a pod's address.
            - {name: HAPAX_PUBLIC_RPC_ADVERTISED, value: "{{ $name }}.{{ $root.Release.Namespace }}.svc.{{ $root.Values.clusterDomain }}@$(POD_IP):9096"}
            {{- else }}
            - {name: HAPAX_PUBLIC_RPC_ADVERTISED, value: "$(POD_IP):9096"}
            {{- end }}
            {{- end }}
            {{- if and (eq .role "broker") .values.rack.topologyKey }}
            # The operator finds the rack of this machine.
            - {name: HAPAX_BROKER_MACHINE, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}
            {{- end }}
            - {name: HAPAX_RPC_LISTEN, value: "0.0.0.0:9094"}
            - {name: HAPAX_PUBLIC_RPC_LISTEN, value: "0.0.0.0:9096"}
            {{- if $root.Values.formerCalls }}
            - {name: HAPAX_RPC_FORMER_CALLS, value: "true"}
            {{- end }}
            {{- if .kafka }}
            - {name: HAPAX_FRAMES_LISTEN, value: "0.0.0.0:9097"}
            - {name: HAPAX_SHUTDOWN_LINGER_MS, value: {{ mul 1000 .values.lingerSeconds | toString | quote }}}
            {{- end }}
            - {name: HAPAX_HTTP_LISTEN, value: "0.0.0.0:8080"}
            - {name: HAPAX_CLUSTER_ID, value: {{ $root.Values.clusterId | quote }}}
            {{- include "hapax.etcdSettings" $root | nindent 12 }}
            - {name: HAPAX_LOG_DIR, value: /data/hapax}
            {{- if $secure }}
            {{- include "hapax.secureSettings" (dict "root" $root "leaf" (ternary "$(HAPAX_NODE_ID)" "own" .kafka) "kafka" .kafka) | nindent 12 }}
            {{- include "hapax.noOverride" (dict "given" .values.settings) }}
            {{- end }}
            {{- range $setting, $value := merge (deepCopy .values.settings) $root.Values.settings (include "hapax.defaultSettings" $root | fromJson) (ternary (include "hapax.defaultLogins" $root | fromJson) dict .kafka) }}
            - {name: HAPAX_{{ $setting | upper | replace "." "_" }}, value: {{ $value | toString | quote }}}
            {{- end }}
          ports:
            {{- if .kafka }}
            - {name: kafka, containerPort: 9092}
            {{- if $secure }}
            - {name: nodes, containerPort: 9093}
            - {name: certificates, containerPort: 9098}
            {{- end }}
            {{- if $root.Values.external.enabled }}
            - {name: external, containerPort: 9095}
            {{- end }}
            {{- end }}
            - {name: rpc, containerPort: 9094}
            - {name: public-rpc, containerPort: 9096}
            {{- if .kafka }}
            - {name: frames, containerPort: 9097}
            {{- end }}
            - {name: http, containerPort: 8080}
          # Recovering a long log takes time. The process answers this probe meanwhile.
          startupProbe: {httpGet: {path: /healthz, port: http{{ $scheme }}}, periodSeconds: 2, failureThreshold: 60}
          livenessProbe: {httpGet: {path: /healthz, port: http{{ $scheme }}}, periodSeconds: 5, timeoutSeconds: 5, failureThreshold: 6}
          # A broker is ready when it serves all its partitions. While a replica has to catch up it is not ready, so that a
          # rolling update or a drain of machines takes the next broker only when no partition would lack a replica.
          readinessProbe: {httpGet: {path: {{ ternary "/readyz" "/syncz" (empty .claims) }}, port: http{{ $scheme }}}, periodSeconds: 2, timeoutSeconds: 2, failureThreshold: 3}
          {{- if .kafka }}
          # SIGTERM follows, at which the process hands its leaderships or shards over and then lingers. Until then, a
          # Service with stale endpoints may still send new connections here, and they are served.
          lifecycle: {preStop: {sleep: {seconds: {{ .values.preStopSeconds }}}}}
          {{- end }}
          volumeMounts:
            - {name: data, mountPath: /data}
            - {name: tmp, mountPath: /tmp}
            {{- if eq .role "operator" }}
            - {name: access, mountPath: /etc/hapax-access, readOnly: true}
            {{- if $root.Values.users.caSecret }}
            - {name: ca, mountPath: /etc/hapax-ca, readOnly: true}
            {{- end }}
            {{- if or $root.Values.users.authoritySecret (include "hapax.usersAuthority" $root) }}
            - {name: clients-ca, mountPath: /etc/hapax-clients-ca, readOnly: true}
            {{- end }}
            {{- end }}
            {{- if $secure }}
            {{- include "hapax.secretMounts" (dict "root" $root "client" (eq .role "operator")) | nindent 12 }}
            {{- end }}
            {{- include "hapax.etcdMounts" $root | nindent 12 }}
      volumes:
        - {name: tmp, emptyDir: {}}
        {{- if eq .role "operator" }}
        - {name: access, configMap: {name: {{ $name }}-access}}
        {{- with $root.Values.users.caSecret }}
        - {name: ca, secret: {secretName: {{ . | quote }}, items: [{key: ca.crt, path: ca.crt}], optional: true}}
        {{- end }}
        {{- with $root.Values.users.authoritySecret }}
        - {name: clients-ca, secret: {secretName: {{ . | quote }}, items: [{key: ca.crt, path: ca.crt}, {key: ca.key, path: ca.key}], optional: true, defaultMode: 0440}}
        {{- end }}
        {{- with include "hapax.usersAuthority" $root }}
        - {name: clients-ca, secret: {secretName: {{ . | quote }}, defaultMode: 0440}}
        {{- end }}
        {{- end }}
        {{- if $secure }}
        {{- include "hapax.secretVolumes" (dict "root" $root "tls" (printf "%s-tls" $name) "client" (ternary (printf "%s-client" $name) "" (eq .role "operator"))) | nindent 8 }}
        {{- end }}
        {{- include "hapax.etcdVolumes" $root | nindent 8 }}
        {{- if not .claims }}
        - {name: data, emptyDir: {}}
        {{- end }}
{{- end -}}
