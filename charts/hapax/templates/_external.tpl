{{/* How clients outside the Kubernetes cluster reach the nodes: their names, ports, and who leads them there. */}}

{{/*
The name of a node for clients outside, by external.hostTemplate; "" where none is given. The argument is a dict of root,
role, id and pod, which may be placeholders themselves.
*/}}
{{- define "hapax.outsideHost" -}}
{{- $external := .root.Values.external -}}
{{- $template := $external.hostTemplate -}}
{{- if and (not $template) $external.domain }}{{ $template = "{pod}.{domain}" }}{{ end -}}
{{- if and (contains "{domain}" $template) (not $external.domain) }}{{ fail "external.hostTemplate has {domain}, and external.domain is empty" }}{{ end -}}
{{- if and $template (not (contains "{pod}" $template)) (not (contains "{id}" $template)) -}}
{{- fail "external.hostTemplate must have {pod} or {id}: a client must tell the nodes by their names" -}}
{{- end -}}
{{ $template | replace "{domain}" $external.domain | replace "{role}" .role | replace "{release}" (include "hapax.fullname" .root) | replace "{pod}" .pod | replace "{id}" (toString .id) }}
{{- end -}}

{{/* Whether one load balancer leads to all nodes, by the name that a client asks for (TLS, SNI). "true" or "". */}}
{{- define "hapax.outsideRouted" -}}
{{- if and .Values.external.enabled (has .Values.external.type (list "TLSRoute" "Ingress")) }}true{{ end -}}
{{- end -}}

{{/* The name at which clients outside begin; "" where it is none of the chart's. */}}
{{- define "hapax.outsideBootstrap" -}}
{{- $external := .Values.external -}}
{{- if $external.bootstrapHost -}}
{{ $external.bootstrapHost }}
{{- else if and $external.domain (include "hapax.outsideRouted" .) -}}
{{ include "hapax.fullname" . }}.{{ $external.domain }}
{{- end -}}
{{- end -}}

{{/* The port at which clients outside reach nodes; of NodePorts each node has another one. */}}
{{- define "hapax.outsidePort" -}}
{{ int (default (ternary 443 9095 (eq (include "hapax.outsideRouted" .) "true")) .Values.external.port) }}
{{- end -}}

{{/* Whether nodes have the addresses that their load balancers get: no name is given. "true" or "". */}}
{{- define "hapax.outsideFound" -}}
{{- $external := .Values.external -}}
{{- if and $external.enabled (eq $external.type "LoadBalancer") $external.perNode (not $external.domain) (not $external.hostTemplate) }}true{{ end -}}
{{- end -}}

{{/*
For how many nodes of a role there are services: root, role. Brokers that are to be removed serve until they are empty,
and a person may have added some by the BrokerPool: it is the live number if that is higher.
*/}}
{{- define "hapax.outsideCount" -}}
{{- $count := int (index .root.Values .role).replicas -}}
{{- if eq .role "broker" -}}
{{- $live := lookup "apps/v1" "StatefulSet" .root.Release.Namespace (printf "%s-broker" (include "hapax.fullname" .root)) -}}
{{- $count = max $count (int (dig "spec" "replicas" 0 ($live | default dict))) -}}
{{- end -}}
{{ $count }}
{{- end -}}

{{/* The address that a pod advertises to clients outside: root, role. */}}
{{- define "hapax.outside" -}}
{{- $external := .root.Values.external -}}
{{- if eq $external.type "NodePort" -}}
EXTERNAL://{{ default "$(HOST_IP)" $external.host }}:{{ int $external.firstNodePort }}+node.id
{{- else if include "hapax.outsideFound" .root -}}
{{- /* It stands for what the operator finds (OUTSIDE_HOST). */ -}}
EXTERNAL://load-balancer.invalid:{{ include "hapax.outsidePort" .root }}
{{- else -}}
{{- $host := include "hapax.outsideHost" (dict "root" .root "role" .role "id" "$(HAPAX_NODE_ID)" "pod" "$(POD_NAME)") -}}
EXTERNAL://{{ required "external.domain (each pod's name below it leads to its own) or external.hostTemplate is needed" $host }}:{{ include "hapax.outsidePort" .root }}
{{- end -}}
{{- end -}}

{{/*
Refuses what cannot work: a router tells nodes apart by the name in the TLS handshake, and one load balancer without it
leads to any node.
*/}}
{{- define "hapax.outsideCheck" -}}
{{- $external := .Values.external -}}
{{- if and (include "hapax.outsideFound" .) .Values.security.enabled (eq (include "hapax.certManager" .) "true") -}}
{{- fail "cert-manager is not told of addresses that load balancers get later, and certificates would lack them: set external.domain or external.hostTemplate" -}}
{{- end -}}
{{- if include "hapax.outsideRouted" . -}}
{{- if not .Values.security.enabled }}{{ fail (printf "external.type=%s routes by the name in the TLS handshake: it needs security.enabled" $external.type) }}{{ end -}}
{{- $_ := required "external.bootstrapHost or external.domain is needed: clients begin at a name of its own" (include "hapax.outsideBootstrap" .) -}}
{{- if and (eq $external.type "TLSRoute") (not $external.gateway.name) }}{{ fail "external.gateway.name must name a Gateway with a listener of the protocol TLS and the mode Passthrough" }}{{ end -}}
{{- end -}}
{{- end -}}

{{/*
A route by SNI to one Service: root, name (of the Service, and of the route), host, component. Nodes end TLS, so that
nothing on the way can read or change anything.
*/}}
{{- define "hapax.outsideRoute" -}}
{{- $root := .root -}}
{{- $external := $root.Values.external -}}
{{- if eq $external.type "TLSRoute" }}
---
apiVersion: {{ include "hapax.tlsRouteVersion" $root }}
kind: TLSRoute
metadata:
  name: {{ .name | quote }}
  namespace: {{ $root.Release.Namespace | quote }}
  labels:
    {{- include "hapax.labels" $root | nindent 4 }}
    app.kubernetes.io/component: {{ .component }}
  annotations: {{ $external.annotations | toJson }}
spec:
  parentRefs:
    - name: {{ $external.gateway.name | quote }}
      {{- with $external.gateway.namespace }}
      namespace: {{ . | quote }}
      {{- end }}
      {{- with $external.gateway.sectionName }}
      sectionName: {{ . | quote }}
      {{- end }}
  hostnames: [{{ .host | quote }}]
  rules:
    - backendRefs:
        - {name: {{ .name | quote }}, port: 9095}
{{- else if eq $external.type "Ingress" }}
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata:
  name: {{ .name | quote }}
  namespace: {{ $root.Release.Namespace | quote }}
  labels:
    {{- include "hapax.labels" $root | nindent 4 }}
    app.kubernetes.io/component: {{ .component }}
  annotations: {{ include "hapax.laidOver" (list (dict "nginx.ingress.kubernetes.io/ssl-passthrough" "true" "nginx.ingress.kubernetes.io/backend-protocol" "HTTPS" "haproxy.org/ssl-passthrough" "true" "haproxy-ingress.github.io/ssl-passthrough" "true") $external.annotations) }}
spec:
  {{- with $external.ingress.className }}
  ingressClassName: {{ . | quote }}
  {{- end }}
  tls:
    - hosts: [{{ .host | quote }}]
  rules:
    - host: {{ .host | quote }}
      http:
        paths:
          - path: /
            pathType: Prefix
            backend: {service: {name: {{ .name | quote }}, port: {number: 9095}}}
{{- end }}
{{- end -}}

{{/* The newest version of TLSRoute that the Kubernetes cluster knows. */}}
{{- define "hapax.tlsRouteVersion" -}}
{{- $found := "gateway.networking.k8s.io/v1" -}}
{{- if not (.Capabilities.APIVersions.Has "gateway.networking.k8s.io/v1/TLSRoute") -}}
{{- range list "v1alpha2" "v1alpha3" -}}
{{- if $.Capabilities.APIVersions.Has (printf "gateway.networking.k8s.io/%s/TLSRoute" .) }}{{ $found = printf "gateway.networking.k8s.io/%s" . }}{{ end -}}
{{- end -}}
{{- end -}}
{{ $found }}
{{- end -}}
