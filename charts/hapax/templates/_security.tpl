{{/* TLS and logins: settings, files, and what the keeper of certificates is told. */}}

{{/* Of probes and metrics. */}}
{{- define "hapax.scheme" -}}
{{- if .Values.security.enabled }}, scheme: HTTPS{{ end -}}
{{- end -}}

{{- define "hapax.superUsers" -}}
{{- $users := list "User:admin" "User:operator" -}}
{{- if .Values.admin.enabled -}}
{{- $users = append $users "User:rest" -}}
{{- end -}}
{{- join ";" (concat $users .Values.security.superUsers) -}}
{{- end -}}

{{/* Whether cert-manager issues: "true" or "". */}}
{{- define "hapax.certManager" -}}
{{- if or (eq .Values.tls.issuer "cert-manager") (and (eq .Values.tls.issuer "auto") (.Capabilities.APIVersions.Has "cert-manager.io/v1/Certificate")) -}}
true
{{- end -}}
{{- end -}}

{{/*
The Secret with the authority that signs certificates of Users, which the keeper makes; "": there is another one, or none.
An issuer that is not the chart's may refuse to sign an authority, and the operator must not wait for it.
*/}}
{{- define "hapax.usersAuthority" -}}
{{- $foreign := and (eq (include "hapax.certManager" .) "true") .Values.tls.issuerRefs.clients -}}
{{- if and .Values.security.enabled (not .Values.users.authoritySecret) (not $foreign) -}}
{{ include "hapax.fullname" . }}-users-authority
{{- end -}}
{{- end -}}

{{/* Settings that the chart gives to every process, unless the values say otherwise: a dict. */}}
{{- define "hapax.defaultSettings" -}}
{{ ternary (dict "audit.log.destination" "stdout") dict .Values.security.enabled | toJson }}
{{- end -}}

{{/* Those of the processes that Kafka clients log in at: a dict. Pods show tokens of their service accounts. */}}
{{- define "hapax.defaultLogins" -}}
{{- $logins := dict -}}
{{- if and .Values.security.enabled (has "OAUTHBEARER" .Values.users.mechanisms) -}}
{{- $logins = dict
      "sasl.enabled.mechanisms" "SCRAM-SHA-512,SCRAM-SHA-256,OAUTHBEARER"
      "sasl.oauthbearer.expected.issuer" (default (printf "https://kubernetes.default.svc.%s" .Values.clusterDomain) .Values.users.tokenIssuer)
      "sasl.oauthbearer.expected.audience" .Values.users.tokenAudience
      "sasl.oauthbearer.jwks.endpoint.url" "file:///etc/hapax/tls/tokens.json" -}}
{{- end -}}
{{- toJson $logins -}}
{{- end -}}

{{/* Settings of one process. `leaf`: the name of its certificate. */}}
{{- define "hapax.secureSettings" -}}
- {name: HAPAX_SECURITY_INTER_BROKER_PROTOCOL, value: SSL}
- {name: HAPAX_PUBLIC_RPC_SECURITY_PROTOCOL, value: SSL}
- {name: HAPAX_HTTP_SECURITY_PROTOCOL, value: SSL}
- {name: HAPAX_SERVICE_SSL_CERTIFICATE_LOCATION, value: "/etc/hapax/tls/{{ .leaf }}.crt"}
- {name: HAPAX_SERVICE_SSL_KEY_LOCATION, value: "/etc/hapax/tls/{{ .leaf }}.key"}
- {name: HAPAX_SERVICE_SSL_TRUSTSTORE_LOCATION, value: /etc/hapax/tls/services-ca.crt}
- {name: HAPAX_SSL_CERTIFICATE_LOCATION, value: "/etc/hapax/tls/{{ .leaf }}-public.crt"}
- {name: HAPAX_SSL_KEY_LOCATION, value: "/etc/hapax/tls/{{ .leaf }}-public.key"}
- {name: HAPAX_SSL_TRUSTSTORE_LOCATION, value: /etc/hapax/tls/clients-ca.crt}
- {name: HAPAX_SSL_PRINCIPAL_MAPPING_RULES, value: "RULE:^CN=([^,]+)(,.*)?$/$1/,DEFAULT"}
# Where there is no login (public gRPC calls, the listener CERTIFICATES), a certificate tells who calls.
- {name: HAPAX_SSL_CLIENT_AUTH, value: {{ default "required" .clientAuth }}}
{{- if .kafka }}
- {name: HAPAX_LISTENER_SECURITY_PROTOCOL_MAP, value: "INTERNAL:SSL,CLIENTS:SASL_SSL,CERTIFICATES:SSL{{ if .root.Values.external.enabled }},EXTERNAL:SASL_SSL{{ end }}"}
- {name: HAPAX_LISTENER_NAME_CLIENTS_SSL_CLIENT_AUTH, value: none}
{{- if .root.Values.external.enabled }}
- {name: HAPAX_LISTENER_NAME_EXTERNAL_SSL_CLIENT_AUTH, value: none}
{{- end }}
{{- end }}
{{- if and .kafka (include "hapax.outsideFound" .root) }}
# A load balancer may get another address.
- {name: HAPAX_SSL_ALLOW_SAN_CHANGES, value: "true"}
{{- end }}
- {name: HAPAX_AUTHORIZER_CLASS_NAME, value: acl}
- {name: HAPAX_SUPER_USERS, value: {{ include "hapax.superUsers" .root | quote }}}
{{- include "hapax.noOverride" (dict "given" .root.Values.settings) }}
{{- end -}}

{{/* Settings that decide who may come in have values of their own: a setting given beside them would be a second one. */}}
{{- define "hapax.noOverride" -}}
{{- range $setting, $_ := .given -}}
{{- if or (has $setting (list "security.inter.broker.protocol" "public.rpc.security.protocol" "http.security.protocol" "admin.security.protocol" "ssl.certificate.location" "ssl.key.location" "ssl.truststore.location" "ssl.client.auth" "ssl.principal.mapping.rules" "listener.security.protocol.map" "authorizer.class.name" "super.users" "admin.client.config")) (hasPrefix "service.ssl." $setting) (hasPrefix "etcd.ssl." $setting) (has $setting (list "etcd.endpoints" "etcd.username" "etcd.password.location")) -}}
{{- fail (printf "settings: %s is set by the chart while security.enabled is true (superusers: security.superUsers)" $setting) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "hapax.secretMounts" -}}
- {name: tls, mountPath: /etc/hapax/tls, readOnly: true}
{{- if .client }}
- {name: client, mountPath: /etc/hapax/client, readOnly: true}
{{- end }}
{{- end -}}

{{/* Mounted as folders, which follow the Secrets. A pod waits until its Secrets are there. */}}
{{- define "hapax.secretVolumes" -}}
{{- with .tls }}
- name: tls
  secret: {secretName: {{ . | quote }}, defaultMode: 0440}
{{- end }}
{{- with .client }}
- name: client
  secret: {secretName: {{ . | quote }}, defaultMode: 0440}
{{- end }}
{{- end -}}

{{/*
What the keeper of certificates keeps (operator/hapax_operator/certificates_spec.py). A node's certificates name its role
and id; a role's Secret has those of all its nodes, since a volume's name cannot depend on the pod.
*/}}
{{- define "hapax.certificates" -}}
{{- $name := include "hapax.fullname" . -}}
{{- $domain := printf "%s.svc.%s" .Release.Namespace .Values.clusterDomain -}}
{{- $short := printf "%s.svc" .Release.Namespace -}}
{{- /* Every process of the cluster shows this name to who reads its metrics. */ -}}
{{- $all := list (printf "%s.%s" $name $domain) (printf "%s.%s" $name $short) -}}
{{- $local := list "localhost" "127.0.0.1" -}}
{{- $outside := .Values.tls.names -}}
{{- if .Values.external.enabled -}}
{{- with .Values.external.host }}{{ $outside = append $outside . }}{{ end -}}
{{- with .Values.external.domain }}{{ $outside = append $outside (printf "*.%s" .) }}{{ end -}}
{{- with include "hapax.outsideBootstrap" . }}{{ $outside = append $outside . }}{{ end -}}
{{- end -}}
{{- $secrets := list -}}
{{- if .Values.etcd.enabled -}}
{{- $etcd := printf "%s-etcd" $name -}}
{{- $names := concat (list (printf "*.%s.%s" $etcd $domain)) $local -}}
{{- $secrets = append $secrets (dict "name" (printf "%s-tls" $etcd) "early" true "leaves" (list
      (dict "name" "etcd" "authority" "services" "subject" "CN=etcd" "use" "both" "names" $names)
      (dict "name" "root" "authority" "services" "subject" "CN=root" "use" "client" "names" list))) -}}
{{- end -}}
{{- $users := dict "admin" (printf "%s-admin" $name) "operator" (printf "%s-operator-client" $name) -}}
{{- if .Values.admin.enabled }}{{ $_ := set $users "rest" (printf "%s-rest-client" $name) }}{{ end -}}
{{- range $user, $secret := $users -}}
{{- $secrets = append $secrets (dict "name" $secret "user" $user "early" true "leaves" (list
      (dict "name" "user" "authority" "clients" "subject" (printf "CN=%s" $user) "use" "client" "names" list))) -}}
{{- end -}}
{{- range $role, $first := dict "broker" 0 "coordinator" 100 -}}
{{- $workload := printf "%s-%s" $name $role -}}
{{- $replicas := int (index $.Values $role).replicas -}}
{{- $own := concat (list (printf "spiffe://%s/%s/{id}" $.Values.clusterId $role)) $all -}}
{{- $public := list (printf "%s-{id}.%s.%s" $workload $workload $domain) (printf "%s-{id}.%s.%s" $workload $workload $short) $name (printf "%s.%s" $name $.Release.Namespace) -}}
{{- $public = concat $public $all $local $outside -}}
{{- if $.Values.external.enabled -}}
{{- with include "hapax.outsideHost" (dict "root" $ "role" $role "id" "{id}" "pod" (printf "%s-{id}" $workload)) }}{{ $public = append $public . | uniq }}{{ end -}}
{{- if include "hapax.outsideFound" $ }}{{ $public = append $public "{outside}" }}{{ end -}}
{{- end -}}
{{- $secrets = append $secrets (dict "name" (printf "%s-tls" $workload) "first" $first "tokens" (has "OAUTHBEARER" $.Values.users.mechanisms) "count" (add $replicas (int $.Values.tls.spareNodes)) "workload" $workload "spare" (int $.Values.tls.spareNodes) "leaves" (list
      (dict "name" "{id}" "authority" "services" "subject" (printf "CN=hapax-%s" $role) "use" "both" "names" $own)
      (dict "name" "{id}-public" "authority" "clients" "subject" (printf "CN=%s-{id}" $workload) "use" "server" "names" $public))) -}}
{{- end -}}
{{- $others := dict "pid" "pid" "operator" "controller" -}}
{{- if .Values.admin.enabled }}{{ $_ := set $others "admin" "admin" }}{{ end -}}
{{- range $component, $role := $others -}}
{{- $service := printf "%s-%s" $name $component -}}
{{- $own := concat (list (printf "spiffe://%s/%s" $.Values.clusterId $role)) $all -}}
{{- $public := concat (list (printf "%s.%s" $service $domain) (printf "%s.%s" $service $short) (printf "%s.%s" $service $.Release.Namespace) $service) $local -}}
{{- if eq $component "admin" }}{{ $public = concat $public $.Values.tls.names }}{{ end -}}
{{- $secrets = append $secrets (dict "name" (printf "%s-tls" $service) "leaves" (list
      (dict "name" "own" "authority" "services" "subject" (printf "CN=hapax-%s" $role) "use" "both" "names" $own)
      (dict "name" "own-public" "authority" "clients" "subject" (printf "CN=%s" $service) "use" "server" "names" $public))) -}}
{{- end -}}
{{- $secrets = append $secrets (dict "name" (printf "%s-trust" $name) "leaves" list) -}}
{{- if include "hapax.usersAuthority" . -}}
{{- $secrets = append $secrets (dict "name" (include "hapax.usersAuthority" .) "leaves" (list
      (dict "name" "ca" "authority" "clients" "subject" (printf "CN=%s-users" $name) "use" "client" "names" list "signs" true))) -}}
{{- end -}}
{{- $outside := dict -}}
{{- if include "hapax.outsideFound" . -}}
{{- $nodes := dict -}}
{{- range $role, $first := dict "broker" 0 "coordinator" 100 -}}
{{- range $ordinal := until (include "hapax.outsideCount" (dict "root" $ "role" $role) | int) -}}
{{- $_ := set $nodes (add $ordinal $first | toString) (printf "%s-%s-%d-external" $name $role (add $ordinal $first)) -}}
{{- end -}}
{{- end -}}
{{- $outside = dict "bootstrap" (printf "%s-external" $name) "nodes" $nodes -}}
{{- end -}}
{{- $etcd := dict "endpoints" (include "hapax.etcd" . | replace "https://" "" | splitList ",") -}}
{{- if .Values.etcd.enabled -}}
{{- $_ := set $etcd "workload" (printf "%s-etcd" $name) -}}
{{- $_ := set $etcd "secret" (printf "%s-etcd-tls" $name) -}}
{{- else -}}
{{- $_ := set $etcd "folder" "/etc/hapax/etcd" -}}
{{- if include "hapax.etcdLogin" . }}{{ $_ := set $etcd "loginFolder" "/etc/hapax/etcd-login" }}{{ end -}}
{{- end -}}
{{- dict
      "cluster" .Values.clusterId "namespace" .Release.Namespace "labels" (include "hapax.labels" . | fromYaml)
      "issuers" (printf "%s-issuers" $name) "certManager" (eq (include "hapax.certManager" .) "true")
      "certificateDays" (int .Values.tls.certificateDays) "authorityDays" (int .Values.tls.authorityDays)
      "overlapSeconds" (dict "services" (int .Values.tls.servicesOverlapSeconds) "clients" (mul 86400 (int .Values.tls.clientsOverlapDays)))
      "secrets" $secrets "etcd" $etcd "outside" $outside
      "clients" (dict "bootstrap" (include "hapax.bootstrap" .) "folder" "/etc/hapax/client") | toJson -}}
{{- end -}}

{{/* Each leaf of the keeper's Secrets: a list of dicts with holder, name, authority, subject, use and names. */}}
{{- define "hapax.leaves" -}}
{{- $leaves := list -}}
{{- range $secret := (include "hapax.certificates" . | fromJson).secrets -}}
{{- range $leaf := $secret.leaves -}}
{{- if $secret.count -}}
{{- range $node := untilStep (int $secret.first) (int (add $secret.first $secret.count)) 1 -}}
{{- $leaves = append $leaves ($leaf | toJson | replace "{id}" (toString $node) | fromJson | merge (dict "holder" $secret.name)) -}}
{{- end -}}
{{- else -}}
{{- $leaves = append $leaves (merge (dict "holder" $secret.name) $leaf) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- dict "leaves" $leaves | toJson -}}
{{- end -}}
