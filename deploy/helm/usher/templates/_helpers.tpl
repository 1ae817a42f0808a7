{{- define "usher.fullname" -}}
{{- .Values.fullnameOverride | default .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "usher.serviceAccount" -}}
{{- .Values.serviceAccount.name | default (include "usher.fullname" .) -}}
{{- end -}}

{{- define "usher.selector" -}}
app.kubernetes.io/name: usher
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{- define "usher.labels" -}}
{{ include "usher.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "usher.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}
{{ .repository }}@{{ .digest }}
{{- else -}}
{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* The ports of addresses. */ -}}
{{- define "usher.healthzPort" -}}
{{ .Values.healthzAddress | default ":10256" | splitList ":" | last }}
{{- end -}}

{{- define "usher.adminPort" -}}
{{ .Values.adminAddress | default ":10249" | splitList ":" | last }}
{{- end -}}
