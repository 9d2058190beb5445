{{- /* What the router is told. Its ports are not settable: they are the pod's own, and nobody else is there. */ -}}

{{- /* "true" where there is, or may be, more than one router. */ -}}
{{- define "warmroute.several" -}}
{{- if or .Values.autoscaling.enabled (gt (int .Values.router.replicas) 1) }}true{{ end }}
{{- end }}

{{- /* "true" where it has been said where workers are. */ -}}
{{- define "warmroute.hasWorkers" -}}
{{- if or .Values.workerUrls .Values.workerDns .Values.discovery.enabled .Values.workers }}true{{ end }}
{{- end }}

{{- define "warmroute.discoveryNamespace" -}}
{{- default .Release.Namespace .Values.discovery.namespace }}
{{- end }}

{{- /* As YAML: the labels of the pods that are workers. */ -}}
{{- define "warmroute.discoverySelector" -}}
{{- if .Values.discovery.selector }}
{{- toYaml .Values.discovery.selector }}
{{- else if .Values.workers }}
{{- if ne (int .Values.discovery.port) 8000 }}
{{- fail "discovery.port is not 8000, where the workers of this chart listen: for others say discovery.selector" }}
{{- end }}
{{- if ne (include "warmroute.discoveryNamespace" .) .Release.Namespace }}
{{- fail "discovery.namespace is not the release's own, where the workers of this chart are: for others say discovery.selector" }}
{{- end }}
{{- include "warmroute.selectorLabels" (list . "worker") }}
{{- else }}
{{- fail "discovery.selector is empty, and the chart starts no workers: say by which labels pods are workers" }}
{{- end }}
{{- end }}

{{- /* A URL as all that mean the same worker are to the router. */ -}}
{{- define "warmroute.workerUrl" -}}
{{- $url := ternary . (printf "http://%s" .) (contains "://" .) }}
{{- $server := regexFind "^https?://[^/]+" $url }}
{{- $path := trimPrefix $server $url }}
{{- if not (regexMatch ":[0-9]+$" $server) }}
{{- $server = printf "%s:%s" $server (ternary "443" "80" (hasPrefix "https:" $server)) }}
{{- end }}
{{- lower $server }}{{ regexReplaceAll "/+$" $path "" }}
{{- end }}

{{- /* (list "key" URLs): fails where the router would refuse them. */ -}}
{{- define "warmroute.checkNoneTwice" -}}
{{- $key := index . 0 }}
{{- $seen := dict }}
{{- range index . 1 }}
{{- $url := include "warmroute.workerUrl" . }}
{{- if hasKey $seen $url }}
{{- fail (printf "%s: %s and %s are the same worker" $key (get $seen $url) .) }}
{{- end }}
{{- $_ := set $seen $url . }}
{{- end }}
{{- end }}

{{- /* As YAML: the URLs whose names stand for all of a set of workers. Those of the chart are among them unless they are
       the ones that discovery looks for. */ -}}
{{- define "warmroute.workerDns" -}}
{{- $urls := .Values.workerDns }}
{{- if or (not .Values.discovery.enabled) .Values.discovery.selector }}
{{- range $name, $_ := .Values.workers }}
{{- $urls = append $urls (printf "http://%s.%s.svc:8000" (include "warmroute.named" (list $ $name)) $.Release.Namespace) }}
{{- end }}
{{- end }}
{{- include "warmroute.checkNoneTwice" (list "workerDns" $urls) }}
{{- toYaml $urls }}
{{- end }}

{{- define "warmroute.routerArgs" -}}
{{- $several := include "warmroute.several" . }}
{{- include "warmroute.checkNoneTwice" (list "workerUrls" .Values.workerUrls) }}
{{- range .Values.router.extraArgs }}
{{- if and $several (hasPrefix "--processes" .) }}
{{- fail "router.extraArgs: --processes is for one router, and there are or may be several: take more of them instead" }}
{{- end }}
{{- end }}
- serve
- --host
- {{ .Values.router.listenHost | quote }}
- --port
- "30000"
- --prometheus-host
- {{ .Values.router.listenHost | quote }}
- --prometheus-port
- "29000"
- --admin-port
- "30002"
- --policy
- {{ .Values.router.policy }}
- --log-level
- {{ .Values.router.logLevel }}
- --max-payload-size
- {{ int64 .Values.router.maxPayloadSize | quote }}
- --shutdown-delay-secs
- {{ int .Values.router.drain.delaySeconds | quote }}
- --shutdown-grace-period-secs
- {{ int .Values.router.drain.graceSeconds | quote }}
- --state-file
- /var/lib/warmroute/state
{{- if .Values.workerUrls }}
- --workers-file
- /etc/warmroute/workers/workers.json
{{- end }}
{{- with include "warmroute.workerDns" . | fromYamlArray }}
- --worker-dns
{{- range . }}
- {{ . | quote }}
{{- end }}
{{- end }}
{{- if .Values.discovery.enabled }}
- --service-discovery
- --service-discovery-namespace
- {{ include "warmroute.discoveryNamespace" . | quote }}
- --service-discovery-port
- {{ int .Values.discovery.port | quote }}
{{- with .Values.discovery.modelLabel }}
- --service-discovery-model-label
- {{ . | quote }}
{{- end }}
- --selector
{{- range $key, $value := include "warmroute.discoverySelector" . | fromYaml }}
- {{ printf "%s=%s" $key $value | quote }}
{{- end }}
{{- end }}
{{- if $several }}
- --peers-dns
- {{ printf "%s.%s.svc:30001" (include "warmroute.named" (list . "gossip")) .Release.Namespace }}
- --gossip-host
- {{ .Values.router.listenHost | quote }}
- --gossip-port
- "30001"
{{- end }}
{{- if .Values.apiKeys.existingSecret }}
- --api-key-file
- /etc/warmroute/api-keys/keys
{{- end }}
{{- if .Values.adminApiKeys.existingSecret }}
- --admin-api-key-file
- /etc/warmroute/admin-api-keys/keys
{{- end }}
{{- if .Values.tls.existingSecret }}
- --tls-cert-path
- /etc/warmroute/tls/tls.crt
- --tls-key-path
- /etc/warmroute/tls/tls.key
{{- end }}
{{- if .Values.workerTls.caSecret }}
- --ca-cert-paths
- /etc/warmroute/worker-ca/ca.crt
{{- end }}
{{- if .Values.workerTls.clientSecret }}
- --client-cert-path
- /etc/warmroute/client-tls/tls.crt
- --client-key-path
- /etc/warmroute/client-tls/tls.key
{{- end }}
{{- with .Values.router.extraArgs }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- /* As YAML: what is mounted where, [{name, path, volume}]. The router reads these files again when they change. */ -}}
{{- define "warmroute.routerFiles" -}}
- name: state
  path: /var/lib/warmroute
  readOnly: false
  volume:
    emptyDir: {}
# For what the processes of --processes share.
- name: tmp
  path: /tmp
  readOnly: false
  volume:
    emptyDir:
      medium: Memory
      sizeLimit: 16Mi
{{- if .Values.workerUrls }}
- name: workers
  path: /etc/warmroute/workers
  readOnly: true
  volume:
    configMap:
      name: {{ include "warmroute.fullname" . }}
{{- end }}
{{- range $name, $secret := dict "api-keys" .Values.apiKeys "admin-api-keys" .Values.adminApiKeys }}
{{- if $secret.existingSecret }}
- name: {{ $name }}
  path: /etc/warmroute/{{ $name }}
  readOnly: true
  volume:
    secret:
      secretName: {{ $secret.existingSecret }}
      items:
        - key: {{ $secret.key }}
          path: keys
{{- end }}
{{- end }}
{{- range $name, $secret := dict "tls" .Values.tls.existingSecret "worker-ca" .Values.workerTls.caSecret "client-tls" .Values.workerTls.clientSecret }}
{{- if $secret }}
- name: {{ $name }}
  path: /etc/warmroute/{{ $name }}
  readOnly: true
  volume:
    secret:
      secretName: {{ $secret }}
{{- end }}
{{- end }}
{{- end }}

{{- /* The generated one: that of the cluster, if it is there, else a new one; the same for the whole rendering. */ -}}
{{- define "warmroute.gossipKey" -}}
{{- if not (hasKey .Values.gossip "generated") }}
{{- $secret := lookup "v1" "Secret" .Release.Namespace (include "warmroute.named" (list . "gossip")) }}
{{- $known := dig "data" "gossip-key" "" $secret | b64dec }}
{{- $_ := set .Values.gossip "generated" (default (randAlphaNum 64) $known) }}
{{- end }}
{{- .Values.gossip.generated }}
{{- end }}
