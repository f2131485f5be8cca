{{- define "highwater.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride -}}
{{- else if contains .Chart.Name .Release.Name -}}
{{- .Release.Name -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name -}}
{{- end -}}
{{- end }}

{{- define "highwater.labels" -}}
{{ include "highwater.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "highwater.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "highwater.image" -}}
{{- $image := .Values.image -}}
{{- if $image.digest -}}
{{- printf "%s@%s" $image.repository $image.digest -}}
{{- else -}}
{{- printf "%s:%s" $image.repository (default .Chart.AppVersion $image.tag) -}}
{{- end -}}
{{- end }}

{{/* The DNS name of all pods of a headless Service: (list $ "broker"). */}}
{{- define "highwater.domain" -}}
{{- $root := index . 0 -}}
{{- printf "%s-%s.%s.svc.%s" (include "highwater.fullname" $root) (index . 1) $root.Release.Namespace $root.Values.clusterDomain -}}
{{- end }}

{{/* host:port of etcd's members, separated by commas. */}}
{{- define "highwater.etcd" -}}
{{- if .Values.etcd.enabled -}}
{{- $members := list -}}
{{- range $n := until (int .Values.etcd.replicas) -}}
{{- $members = append $members (printf "%s-etcd-%d.%s:2379" (include "highwater.fullname" $) $n (include "highwater.domain" (list $ "etcd"))) -}}
{{- end -}}
{{- join "," $members -}}
{{- else -}}
{{- join "," .Values.etcd.endpoints -}}
{{- end -}}
{{- end }}

{{/* How many replicas a setting that counts them may ask for is checked in _refusals.tpl. */}}
{{- define "highwater.bootstrap" -}}
{{- printf "%s.%s.svc.%s:9092" (include "highwater.fullname" .) .Release.Namespace .Values.clusterDomain -}}
{{- end }}

{{/* What the services that speak with etcd are told of it. */}}
{{- define "highwater.etcdSettings" -}}
cluster={{ .Values.clusterName }}
etcd={{ include "highwater.etcd" . }}
{{- if .Values.etcd.tls.secretName }}
etcd.ca.file=/etc/highwater-etcd/ca.crt
{{- if .Values.etcd.tls.clientCertificate }}
etcd.certificate.file=/etc/highwater-etcd/tls.crt
etcd.key.file=/etc/highwater-etcd/tls.key
{{- end }}
{{- end }}
{{- end }}

{{/* The files of TLS, as settings of a service. */}}
{{- define "highwater.tlsSettings" -}}
{{- if .Values.tls.secretName }}
ssl.ca.file=/etc/highwater-tls/ca.crt
ssl.certificate.file=/etc/highwater-tls/tls.crt
ssl.key.file=/etc/highwater-tls/tls.key
{{- end }}
{{- end }}

{{/* The same for a client, as variables. */}}
{{- define "highwater.tlsEnvironment" -}}
{{- if .Values.tls.secretName }}
- {name: HIGHWATER_SECURITY_PROTOCOL, value: SSL}
- {name: HIGHWATER_SSL_CA_FILE, value: /etc/highwater-tls/ca.crt}
- {name: HIGHWATER_SSL_CERTIFICATE_FILE, value: /etc/highwater-tls/tls.crt}
- {name: HIGHWATER_SSL_KEY_FILE, value: /etc/highwater-tls/tls.key}
{{- end }}
{{- end }}

{{- define "highwater.tlsMount" -}}
{{- if .Values.tls.secretName }}
- {name: tls, mountPath: /etc/highwater-tls, readOnly: true}
{{- end }}
{{- end }}

{{- define "highwater.tlsVolume" -}}
{{- with .Values.tls.secretName }}
- name: tls
  secret: {secretName: {{ . }}, defaultMode: 0440}
{{- end }}
{{- end }}

{{/* Before an address at which TLS is spoken. */}}
{{- define "highwater.ssl" -}}
{{- if .Values.tls.secretName }}ssl:{{ end -}}
{{- end }}

{{/* The port of a service's probes, which speak no TLS: (list $ port healthPort). */}}
{{- define "highwater.probePort" -}}
{{- ternary (index . 2) (index . 1) (ne (index . 0).Values.tls.secretName "") -}}
{{- end }}

{{/* Has a service listen for probes where its other port speaks TLS: (list $ healthPort). */}}
{{- define "highwater.healthListen" -}}
{{- if (index . 0).Values.tls.secretName }}
- --set=health.listen=0.0.0.0:{{ index . 1 }}
- --set=ssl.client.auth=required
{{- end }}
{{- end }}

{{- define "highwater.etcdMount" -}}
{{- if .Values.etcd.tls.secretName }}
- {name: etcd-tls, mountPath: /etc/highwater-etcd, readOnly: true}
{{- end }}
{{- end }}

{{- define "highwater.etcdVolume" -}}
{{- with .Values.etcd.tls.secretName }}
- name: etcd-tls
  secret: {secretName: {{ . }}, defaultMode: 0440}
{{- end }}
{{- end }}
