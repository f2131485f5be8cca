{{/* What a schema cannot say: values that do not go together. */}}
{{- define "highwater.refusals" -}}
{{- $v := .Values -}}
{{- $brokers := int $v.broker.replicas -}}
{{- $rf := int (index $v.settings "default.replication.factor" | default 1) -}}
{{- $min := int (index $v.settings "min.insync.replicas" | default 1) -}}
{{- if gt $rf $brokers -}}
{{- fail (printf "default.replication.factor is %d, and there are %d brokers: give broker.replicas at least as many" $rf $brokers) -}}
{{- end -}}
{{- if and (gt $rf 1) (ge $min $rf) -}}
{{- fail (printf "min.insync.replicas is %d with default.replication.factor %d: no broker could ever be restarted without refusing writes; make it at most %d" $min $rf (sub $rf 1)) -}}
{{- end -}}
{{- range $topic := $v.topics -}}
{{- $replicas := int ($topic.replicationFactor | default $rf) -}}
{{- if gt $replicas $brokers -}}
{{- fail (printf "topic %s: replicationFactor is %d, and there are %d brokers" $topic.name $replicas $brokers) -}}
{{- end -}}
{{- $least := int (index ($topic.config | default dict) "min.insync.replicas" | default $min) -}}
{{- if and (gt $replicas 1) (ge $least $replicas) -}}
{{- fail (printf "topic %s: min.insync.replicas is %d with %d replicas: make it at most %d" $topic.name $least $replicas (sub $replicas 1)) -}}
{{- end -}}
{{- end -}}
{{- if and (not $v.etcd.enabled) (not $v.etcd.endpoints) -}}
{{- fail "etcd.enabled is false and etcd.endpoints is empty: name the members of the etcd to use, as host:port" -}}
{{- end -}}
{{- if and $v.etcd.enabled $v.etcd.endpoints -}}
{{- fail "etcd.endpoints names an etcd, and etcd.enabled makes another one: set etcd.enabled to false, or leave the endpoints out" -}}
{{- end -}}
{{- if and $v.etcd.enabled $v.etcd.tls.secretName (not $v.etcd.tls.memberSecretName) -}}
{{- fail "etcd.tls.secretName turns TLS on, and the chart's own etcd needs a certificate for it: name its secret in etcd.tls.memberSecretName" -}}
{{- end -}}
{{- if and $v.etcd.tls.memberSecretName (not $v.etcd.tls.secretName) -}}
{{- fail "etcd.tls.memberSecretName turns TLS on, and Highwater's services need the authority of its certificate: name the secret that has it in etcd.tls.secretName" -}}
{{- end -}}
{{- if and $v.etcd.tls.memberSecretName (not $v.etcd.enabled) -}}
{{- fail "etcd.tls.memberSecretName is for the chart's own etcd, and etcd.enabled is false: leave it out" -}}
{{- end -}}
{{- if $v.etcd.enabled -}}
{{- $tag := trimPrefix "v" $v.etcd.image.tag -}}
{{- if not (regexMatch "^[0-9]+\\.[0-9]+\\.[0-9]+$" $tag) -}}
{{- fail (printf "etcd.image.tag is %s: name a version as v3.6.16, so that it is known that it is none that loses writes" $v.etcd.image.tag) -}}
{{- end -}}
{{- if semverCompare "< 3.5.6" $tag -}}
{{- fail (printf "etcd %s may lose or corrupt what it acknowledged: take 3.5.6 or newer" $v.etcd.image.tag) -}}
{{- end -}}
{{- end -}}
{{- $external := $v.externalAccess -}}
{{- if $external.enabled -}}
{{- if lt (len $external.advertised) $brokers -}}
{{- fail (printf "externalAccess.advertised names %d addresses for %d brokers: clients outside must be told one of each" (len $external.advertised) $brokers) -}}
{{- end -}}
{{- if ne (len (uniq $external.advertised)) (len $external.advertised) -}}
{{- fail "externalAccess.advertised names an address twice: each broker needs one of its own" -}}
{{- end -}}
{{- if and $external.nodePorts (lt (len $external.nodePorts) $brokers) -}}
{{- fail (printf "externalAccess.nodePorts names %d ports for %d brokers" (len $external.nodePorts) $brokers) -}}
{{- end -}}
{{- end -}}
{{- $waits := add (int64 (index $v.broker.settings "controlled.shutdown.max.wait.ms" | default 0)) (int64 (index $v.broker.settings "log.close.max.wait.ms" | default 0)) -}}
{{- if gt $waits (mul (int64 $v.broker.terminationGracePeriodSeconds) 1000) -}}
{{- fail (printf "broker.terminationGracePeriodSeconds is %v: it has to be longer than controlled.shutdown.max.wait.ms and log.close.max.wait.ms together" $v.broker.terminationGracePeriodSeconds) -}}
{{- end -}}
{{- end }}
