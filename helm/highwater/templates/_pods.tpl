{{- define "highwater.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "highwater.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{/* The settings of one service, as lines of a properties file: (list $ "replica-manager" ownSettings forcedSettings).
     Those of .Values.settings go to every service that has the key. */}}
{{- define "highwater.settings" -}}
{{- $root := index . 0 -}}
{{- $known := index ($root.Files.Get "files/settings.json" | fromJson) (index . 1) -}}
{{- $given := merge (deepCopy (index . 2)) $root.Values.settings -}}
{{- range $key, $value := $given }}
{{- if has $key $known }}
{{ $key }}={{ include "highwater.value" $value }}
{{- end }}
{{- end }}
{{- end }}

{{/* Helm reads whole numbers of values as floats: 604800000 would be written 6.048e+08. */}}
{{- define "highwater.value" -}}
{{- if and (kindIs "float64" .) (eq (floor .) .) -}}
{{- int64 . -}}
{{- else -}}
{{- . -}}
{{- end -}}
{{- end }}

{{/* Placement of a pod: (list $ roleValues "broker"). */}}
{{- define "highwater.placement" -}}
{{- $root := index . 0 -}}
{{- $role := index . 1 -}}
{{- $component := index . 2 -}}
{{- with $root.Values.imagePullSecrets }}
imagePullSecrets:
{{- range . }}
  - name: {{ . }}
{{- end }}
{{- end }}
{{- with $role.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with $role.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $role.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $role.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
topologySpreadConstraints:
{{- if $role.topologySpreadConstraints }}
{{- toYaml $role.topologySpreadConstraints | nindent 2 }}
{{- else }}
{{- range $key := list "topology.kubernetes.io/zone" "kubernetes.io/hostname" }}
  - topologyKey: {{ $key }}
    maxSkew: 1
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "highwater.selector" $root | nindent 8 }}
        app.kubernetes.io/component: {{ $component }}
{{- end }}
{{- end }}
{{- end }}

{{/* A native gRPC probe: (list port service). */}}
{{- define "highwater.probe" -}}
grpc: {port: {{ index . 0 }}, service: {{ index . 1 | quote }}}
periodSeconds: {{ index . 2 }}
timeoutSeconds: 5
failureThreshold: {{ index . 3 }}
{{- end }}
