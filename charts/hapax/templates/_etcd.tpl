{{/* Which etcd the processes use: the release's own, or one that is there already (etcd.external). */}}

{{/* host:port of each etcd member, separated by commas. */}}
{{- define "hapax.etcd" -}}
{{- $external := .Values.etcd.external -}}
{{- if .Values.etcd.enabled -}}
{{- with $external.endpoints }}{{ fail "etcd.external.endpoints names an etcd, and etcd.enabled installs another one: set etcd.enabled=false" }}{{ end -}}
{{- $name := include "hapax.fullname" . -}}
{{- $hosts := list -}}
{{- range $index := until (int .Values.etcd.replicas) -}}
{{- $scheme := ternary "https://" "" $.Values.security.enabled -}}
{{- $hosts = append $hosts (printf "%s%s-etcd-%d.%s-etcd.%s.svc.%s:2379" $scheme $name $index $name $.Release.Namespace $.Values.clusterDomain) -}}
{{- end -}}
{{- join "," $hosts -}}
{{- else -}}
{{- $tls := false -}}
{{- range $external.endpoints -}}
{{- if hasPrefix "https://" . -}}
{{- $tls = true -}}
{{- else if $.Values.security.enabled -}}
{{- fail (printf "etcd.external.endpoints: %s does not begin with https://, as security.enabled wants it" .) -}}
{{- end -}}
{{- end -}}
{{- if and $.Values.security.enabled (not (or $external.tls.clientCertificate $external.login.secret)) -}}
{{- fail "etcd.external: an etcd that takes every caller is not for security.enabled. Give a login (etcd.external.login.secret) or a certificate (etcd.external.tls.clientCertificate)" -}}
{{- end -}}
{{- if and $tls (not $external.tls.secret) -}}
{{- fail "etcd.external.tls.secret must name a Secret with ca.crt, and with tls.crt and tls.key unless etcd.external.tls.clientCertificate is false" -}}
{{- end -}}
{{- required "etcd.external.endpoints must name an etcd where etcd.enabled is false" (join "," $external.endpoints) -}}
{{- end -}}
{{- end -}}

{{/* Whether a Secret of the external etcd is mounted: of its certificates, or with the login. "true" or "". */}}
{{- define "hapax.etcdTls" -}}
{{- if and (not .Values.etcd.enabled) .Values.etcd.external.tls.secret }}true{{ end -}}
{{- end -}}
{{- define "hapax.etcdLogin" -}}
{{- if and (not .Values.etcd.enabled) .Values.etcd.external.login.secret }}true{{ end -}}
{{- end -}}

{{/* Settings of every process that uses etcd. */}}
{{- define "hapax.etcdSettings" -}}
- {name: HAPAX_ETCD_ENDPOINTS, value: {{ include "hapax.etcd" . | quote }}}
{{- $external := .Values.etcd.external }}
{{- if include "hapax.etcdTls" . }}
- {name: HAPAX_ETCD_SSL_TRUSTSTORE_LOCATION, value: /etc/hapax/etcd/ca.crt}
{{- if $external.tls.clientCertificate }}
- {name: HAPAX_ETCD_SSL_CERTIFICATE_LOCATION, value: /etc/hapax/etcd/tls.crt}
- {name: HAPAX_ETCD_SSL_KEY_LOCATION, value: /etc/hapax/etcd/tls.key}
{{- end }}
{{- end }}
{{- if include "hapax.etcdLogin" . }}
- {name: HAPAX_ETCD_USERNAME, valueFrom: {secretKeyRef: {name: {{ $external.login.secret | quote }}, key: username}}}
- {name: HAPAX_ETCD_PASSWORD_LOCATION, value: /etc/hapax/etcd-login/password}
{{- end }}
{{- end -}}

{{- define "hapax.etcdMounts" -}}
{{- if include "hapax.etcdTls" . }}
- {name: etcd, mountPath: /etc/hapax/etcd, readOnly: true}
{{- end }}
{{- if include "hapax.etcdLogin" . }}
- {name: etcd-login, mountPath: /etc/hapax/etcd-login, readOnly: true}
{{- end }}
{{- end -}}

{{/* Mounted as folders, which follow the Secrets. */}}
{{- define "hapax.etcdVolumes" -}}
{{- if include "hapax.etcdTls" . }}
- name: etcd
  secret: {secretName: {{ .Values.etcd.external.tls.secret | quote }}, defaultMode: 0440}
{{- end }}
{{- if include "hapax.etcdLogin" . }}
- name: etcd-login
  secret: {secretName: {{ .Values.etcd.external.login.secret | quote }}, defaultMode: 0440}
{{- end }}
{{- end -}}

{{/*
A release keeps its etcd: processes refuse another store than the one they know, and the members' pods would end at once.
*/}}
{{- define "hapax.etcdKept" -}}
{{- $name := include "hapax.fullname" . -}}
{{- $brokers := default dict (lookup "apps/v1" "StatefulSet" .Release.Namespace (printf "%s-broker" $name)) -}}
{{- with dig "metadata" "annotations" "hapax.dev/etcd" "" $brokers -}}
{{- $was := eq . "own" -}}
{{- if ne $was $.Values.etcd.enabled -}}
{{- fail (printf "this release was installed with etcd.enabled=%t, and what it knows is in that etcd: keep etcd.enabled=%t" $was $was) -}}
{{- end -}}
{{- end -}}
{{- end -}}
