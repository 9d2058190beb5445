{{- /* Pools of workers: workerDefaults, and what a pool says otherwise. */ -}}

{{- /* (list $ "pool") as YAML. */ -}}
{{- define "warmroute.pool" -}}
{{- $root := index . 0 }}
{{- $own := get $root.Values.workers (index . 1) | default dict }}
{{- $pool := mustMergeOverwrite (deepCopy $root.Values.workerDefaults) (deepCopy $own) }}
{{- if not $pool.model }}
{{- fail (printf "workers.%s.model is empty: say which model its workers serve" (index . 1)) }}
{{- end }}
{{- toYaml $pool }}
{{- end }}

{{- /* (list $ "pool") */ -}}
{{- define "warmroute.poolSelectorLabels" -}}
{{- include "warmroute.selectorLabels" (list (index . 0) "worker") }}
warmroute.io/pool: {{ index . 1 }}
{{- end }}

{{- /* (list $ "pool") */ -}}
{{- define "warmroute.poolLabels" -}}
{{- include "warmroute.labels" (list (index . 0) "worker") }}
warmroute.io/pool: {{ index . 1 }}
{{- end }}

{{- /* (list $ pool) */ -}}
{{- define "warmroute.workerImage" -}}
{{- $root := index . 0 }}
{{- $pool := index . 1 }}
{{- if eq $pool.engine "vllm" }}
{{- include "warmroute.image" (list $pool.image "vllm/vllm-openai" "v0.32.0") }}
{{- else }}
{{- include "warmroute.image" (list $pool.image "ghcr.io/warmroute/warmroute-worker" $root.Chart.AppVersion) }}
{{- end }}
{{- end }}

{{- /* A pool. Without a report of cached tokens the router has to guess what each cache holds. */ -}}
{{- define "warmroute.workerCommand" -}}
{{- if eq .engine "vllm" -}}
command: [vllm, serve]
args:
  - {{ .model | quote }}
  - --enable-prompt-tokens-details
  {{- if gt (int .gpu.count) 1 }}
  - --tensor-parallel-size
  - {{ int .gpu.count | quote }}
  {{- end }}
{{- else -}}
command: [warmroute]
args:
  - worker
  - --model
  - {{ .model | quote }}
{{- end }}
  - --host
  - {{ .listenHost | quote }}
  - --port
  - "8000"
  {{- with .servedModelName }}
  - --served-model-name
  - {{ . | quote }}
  {{- end }}
  {{- with .extraArgs }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}

{{- /* (list $ pool) */ -}}
{{- define "warmroute.workerEnv" -}}
{{- $root := index . 0 }}
{{- $pool := index . 1 -}}
# Whatever an engine wants to keep goes to the cache: the rest of the file system is read-only.
- name: HOME
  value: /cache
- name: HF_HOME
  value: /cache/huggingface
# PyTorch asks for the user's name, and the one that runs here may have none.
- name: USER
  value: worker
{{- with $pool.hfToken.existingSecret }}
- name: HF_TOKEN
  valueFrom:
    secretKeyRef:
      name: {{ . }}
      key: {{ $pool.hfToken.key }}
{{- end }}
{{- if eq $pool.engine "vllm" }}
{{- with $root.Values.workerApiKey.existingSecret }}
- name: VLLM_API_KEY
  valueFrom:
    secretKeyRef:
      name: {{ . }}
      key: {{ $root.Values.workerApiKey.key }}
{{- end }}
{{- end }}
{{- with $pool.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- /* A pool. GPUs are limits: a request of them is the same by definition. */ -}}
{{- define "warmroute.workerResources" -}}
{{- $resources := deepCopy .resources }}
{{- if .gpu.count }}
{{- $limits := merge (dict .gpu.resource (int .gpu.count)) (default dict $resources.limits) }}
{{- $_ := set $resources "limits" $limits }}
{{- end }}
{{- toYaml $resources }}
{{- end }}
