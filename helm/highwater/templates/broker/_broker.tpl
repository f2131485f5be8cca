{{/* What the pods of a broker's services have in common: (list $ component). */}}
{{- define "highwater.brokerPod" -}}
{{- $root := index . 0 -}}
serviceAccountName: {{ include "highwater.fullname" $root }}-broker
automountServiceAccountToken: {{ $root.Values.broker.rackFromZone }}
enableServiceLinks: false
{{- if $root.Values.broker.shareProcessNamespace }}
shareProcessNamespace: true
{{- end }}
terminationGracePeriodSeconds: {{ $root.Values.broker.terminationGracePeriodSeconds }}
securityContext:
  {{- include "highwater.podSecurity" $root | nindent 2 }}
{{- include "highwater.placement" (list $root $root.Values.broker (index . 1)) }}
{{- end }}

{{/* The environment that a broker's id and names come from. */}}
{{- define "highwater.brokerEnvironment" -}}
- name: POD_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
- name: POD_IP
  valueFrom: {fieldRef: {fieldPath: status.podIP}}
- name: ORDINAL
  valueFrom: {fieldRef: {fieldPath: "metadata.labels['apps.kubernetes.io/pod-index']"}}
{{- include "highwater.tlsEnvironment" . }}
{{- end }}

{{- define "highwater.logStorage" -}}
image: {{ include "highwater.image" . }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  {{- include "highwater.containerSecurity" . | nindent 2 }}
env:
  {{- include "highwater.brokerEnvironment" . | nindent 2 }}
ports:
  - {name: log-storage, containerPort: 9083}
  - {name: ls-metrics, containerPort: 9406}
# It is live while it recovers, for as long as that takes.
livenessProbe:
  {{- include "highwater.probe" (list (include "highwater.probePort" (list . 9083 9081)) "live" 10 6) | nindent 2 }}
startupProbe:
  {{- include "highwater.probe" (list (include "highwater.probePort" (list . 9083 9081)) "live" 1 60) | nindent 2 }}
resources: {{- toYaml .Values.broker.resources.logStorage | nindent 2 }}
volumeMounts:
  - {name: run, mountPath: /run/highwater}
  - {name: temporary, mountPath: /tmp}
  - {name: settings, mountPath: /etc/highwater, readOnly: true}
  {{- range $n := until (int .Values.broker.storage.logDirs) }}
  - {name: data-{{ $n }}, mountPath: /data/{{ $n }}}
  {{- end }}
  {{- with include "highwater.tlsMount" . }}{{ . | nindent 2 }}{{ end }}
command: [python, -m, highwater.log_storage]
args:
  - --config=/etc/highwater/log-storage.properties
  - --set=broker.id=$(ORDINAL)
  - --set=metrics.listen=0.0.0.0:9406
  {{- with include "highwater.healthListen" (list . 9081) }}{{ . | nindent 2 }}{{ end }}
{{- end }}

{{- define "highwater.fetcher" -}}
image: {{ include "highwater.image" . }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  {{- include "highwater.containerSecurity" . | nindent 2 }}
env:
  {{- include "highwater.brokerEnvironment" . | nindent 2 }}
ports:
  - {name: fetcher, containerPort: 9084}
  - {name: f-metrics, containerPort: 9405}
livenessProbe:
  {{- include "highwater.probe" (list (include "highwater.probePort" (list . 9084 9082)) "live" 10 6) | nindent 2 }}
startupProbe:
  {{- include "highwater.probe" (list (include "highwater.probePort" (list . 9084 9082)) "live" 1 60) | nindent 2 }}
resources: {{- toYaml .Values.broker.resources.fetcher | nindent 2 }}
volumeMounts:
  - {name: run, mountPath: /run/highwater}
  - {name: temporary, mountPath: /tmp}
  - {name: settings, mountPath: /etc/highwater, readOnly: true}
  {{- with include "highwater.tlsMount" . }}{{ . | nindent 2 }}{{ end }}
command: [python, -m, highwater.fetcher]
args:
  - --config=/etc/highwater/fetcher.properties
  - --set=broker.id=$(ORDINAL)
  - --set=metrics.listen=0.0.0.0:9405
  {{- with include "highwater.healthListen" (list . 9082) }}{{ . | nindent 2 }}{{ end }}
{{- end }}

{{- define "highwater.replicaManager" -}}
image: {{ include "highwater.image" . }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  {{- include "highwater.containerSecurity" . | nindent 2 }}
env:
  {{- include "highwater.brokerEnvironment" . | nindent 2 }}
ports:
  - {name: client, containerPort: 9092}
  - {name: internal, containerPort: 9090}
  - {name: health, containerPort: 9080}
  - {name: rm-metrics, containerPort: 9404}
  {{- if .Values.externalAccess.enabled }}
  - {name: external, containerPort: 9094}
  {{- end }}
livenessProbe:
  {{- include "highwater.probe" (list 9080 "live" 10 6) | nindent 2 }}
startupProbe:
  {{- include "highwater.probe" (list 9080 "live" 1 60) | nindent 2 }}
readinessProbe:
  {{- include "highwater.probe" (list 9080 "ready" 2 2) | nindent 2 }}
resources: {{- toYaml .Values.broker.resources.replicaManager | nindent 2 }}
volumeMounts:
  - {name: run, mountPath: /run/highwater}
  - {name: temporary, mountPath: /tmp}
  - {name: settings, mountPath: /etc/highwater, readOnly: true}
  {{- with include "highwater.etcdMount" . }}{{ . | nindent 2 }}{{ end }}
  {{- with include "highwater.tlsMount" . }}{{ . | nindent 2 }}{{ end }}
command: [python, -m, highwater.replica_manager]
args:
  - --config=/etc/highwater/replica-manager.properties
  {{- if .Values.externalAccess.enabled }}
  - --config=/etc/highwater/external-$(ORDINAL).properties
  {{- end }}
  {{- if .Values.broker.rackFromZone }}
  - --config=/run/highwater/rack.properties
  {{- end }}
  - --set=broker.id=$(ORDINAL)
  - --set=listeners=CLIENT://0.0.0.0:9092,INTERNAL://0.0.0.0:9090{{ if .Values.externalAccess.enabled }},EXTERNAL://0.0.0.0:9094{{ end }}
  {{- if not .Values.externalAccess.enabled }}
  - --set=advertised.listeners={{ include "highwater.advertised" (list . "$(POD_NAME)" "") }}
  {{- end }}
  - --set=inter.broker.listener.name=INTERNAL
  {{- if .Values.tls.secretName }}
  - --set=listener.security.protocol.map=CLIENT:SSL,INTERNAL:SSL{{ if .Values.externalAccess.enabled }},EXTERNAL:SSL{{ end }}
  - --set=ssl.client.auth=CLIENT:{{ .Values.tls.clientAuth }},INTERNAL:required{{ if .Values.externalAccess.enabled }},EXTERNAL:{{ .Values.tls.clientAuth }}{{ end }}
  {{- end }}
  # Of the pod itself: what a Service or a mesh answers says nothing of this process.
  - --set=host.address=$(POD_IP):9090
  - --set=health.listen=0.0.0.0:9080
  - --set=metrics.listen=0.0.0.0:9404
{{- end }}

{{- define "highwater.rackContainer" -}}
- name: rack
  image: {{ include "highwater.image" . }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  securityContext:
    {{- include "highwater.containerSecurity" . | nindent 4 }}
  env:
    - name: NODE
      valueFrom: {fieldRef: {fieldPath: spec.nodeName}}
  command: [python, -m, highwater.kube.rack, --node=$(NODE), --out=/run/highwater/rack.properties]
  resources:
    requests: {cpu: 10m, memory: 64Mi}
    limits: {memory: 256Mi}
  volumeMounts:
    - {name: run, mountPath: /run/highwater}
    - {name: temporary, mountPath: /tmp}
{{- end }}

{{- define "highwater.brokerVolumes" -}}
- name: run
  emptyDir: {}
- name: temporary
  emptyDir: {}
- name: settings
  configMap: {name: {{ include "highwater.fullname" . }}-broker}
{{- include "highwater.etcdVolume" . }}
{{- include "highwater.tlsVolume" . }}
{{- end }}

{{- define "highwater.volumeClaims" -}}
{{- $storage := .Values.broker.storage }}
{{- range $n := until (int $storage.logDirs) }}
- metadata: {name: data-{{ $n }}}
  spec:
    accessModes: {{ toJson $storage.accessModes }}
    {{- with $storage.storageClass }}
    storageClassName: {{ . }}
    {{- end }}
    resources: {requests: {storage: {{ $storage.size }}}}
{{- end }}
{{- end }}

{{/* What a broker tells others to connect to: (list $ podName externalAddress). */}}
{{- define "highwater.advertised" -}}
{{- $root := index . 0 -}}
{{- $component := ternary "broker" "replica-manager" (eq $root.Values.layout "colocated") -}}
{{- $host := printf "%s.%s" (index . 1) (include "highwater.domain" (list $root $component)) -}}
CLIENT://{{ $host }}:9092,INTERNAL://{{ $host }}:9090{{ with index . 2 }},EXTERNAL://{{ . }}{{ end }}
{{- end }}
