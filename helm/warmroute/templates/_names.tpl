{{- /* Names and labels. */ -}}

{{- define "warmroute.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "warmroute.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" }}
{{- else if contains (include "warmroute.name" .) .Release.Name }}
{{- .Release.Name | trunc 63 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "warmroute.name" .) | trunc 63 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- /* (list $ "suffix"): the full name with a suffix that is never cut. 52, since a StatefulSet adds a hash to its name and
       makes a label of it, which may have 63 characters. */ -}}
{{- define "warmroute.named" -}}
{{- $suffix := index . 1 }}
{{- $room := sub 51 (len $suffix) | int }}
{{- printf "%s-%s" (include "warmroute.fullname" (index . 0) | trunc $room | trimSuffix "-") $suffix }}
{{- end }}

{{- /* (list $ "suffix" "namespace"): the same for an object that may be in another namespace, where a release of the same name
       in a third one may have one too. Nothing is cut: such names may have 253 characters. */ -}}
{{- define "warmroute.namedIn" -}}
{{- $own := (index . 0).Release.Namespace }}
{{- if ne (index . 2) $own }}{{ $own }}.{{ end }}{{ include "warmroute.named" . }}
{{- end }}

{{- /* (list $ "component"): what never changes from one version to the next. */ -}}
{{- define "warmroute.selectorLabels" -}}
app.kubernetes.io/name: {{ include "warmroute.name" (index . 0) }}
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{- /* (list $ "component") */ -}}
{{- define "warmroute.labels" -}}
{{- $root := index . 0 }}
{{- include "warmroute.selectorLabels" . }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/part-of: warmroute
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "warmroute.serviceAccountName" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "warmroute.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- default "default" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- /* (list image "its default repository" "its default tag") */ -}}
{{- define "warmroute.image" -}}
{{- $image := index . 0 }}
{{- $repository := default (index . 1) $image.repository }}
{{- if $image.digest }}
{{- printf "%s@%s" $repository $image.digest }}
{{- else }}
{{- printf "%s:%s" $repository (default (index . 2) $image.tag) }}
{{- end }}
{{- end }}
