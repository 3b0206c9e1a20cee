{{- define "millpond.name" -}}
{{- .Values.nameOverride | default .Chart.Name | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{/* Short enough for "-headless" behind it: a name of a Service has 63 characters at most. */}}
{{- define "millpond.fullname" -}}
{{- $name := include "millpond.name" . -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "millpond.selectorLabels" -}}
app.kubernetes.io/name: {{ include "millpond.name" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{/* Not the servers' name: their Services must not select the coordinator. */}}
{{- define "millpond.fleetSelectorLabels" -}}
app.kubernetes.io/name: {{ include "millpond.name" . }}-fleet
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{- define "millpond.fleetLabels" -}}
{{ include "millpond.fleetSelectorLabels" . }}
{{ include "millpond.releaseLabels" . }}
app.kubernetes.io/component: coordinator
{{- end -}}

{{- define "millpond.labels" -}}
{{ include "millpond.selectorLabels" . }}
{{ include "millpond.releaseLabels" . }}
{{- end -}}

{{- define "millpond.releaseLabels" -}}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "millpond.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- .Values.serviceAccount.name | default (include "millpond.fullname" .) -}}
{{- else -}}
{{- .Values.serviceAccount.name | default "default" -}}
{{- end -}}
{{- end -}}

{{- define "millpond.image" -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) -}}
{{- end -}}
{{- end -}}

{{/* "true" if a model is in object storage, else empty. */}}
{{- define "millpond.hasUrls" -}}
{{- $found := "" -}}
{{- range .Values.models -}}
{{- if contains "://" .basePath -}}{{- $found = "true" -}}{{- end -}}
{{- end -}}
{{- $found -}}
{{- end -}}

{{/* "true" if a model is in a directory, so that the pods need the volume of the models; else empty. */}}
{{- define "millpond.hasDirectories" -}}
{{- $found := "" -}}
{{- range .Values.models -}}
{{- if not (contains "://" .basePath) -}}{{- $found = "true" -}}{{- end -}}
{{- end -}}
{{- $found -}}
{{- end -}}

{{- define "millpond.podSecurityContext" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "millpond.containerSecurityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{/* Fails with the reason if values contradict each other in a way that the schema cannot see. */}}
{{- define "millpond.check" -}}
{{- $names := list -}}
{{- range .Values.models -}}
{{- if has .name $names -}}{{- fail (printf "models: duplicate model %q" .name) -}}{{- end -}}
{{- $names = append $names .name -}}
{{- if not (contains "://" .basePath) -}}
{{- if not (hasPrefix (printf "%s/" $.Values.modelVolume.mountPath) (printf "%s/" .basePath)) -}}
{{- fail (printf "models: %q has the directory %s outside modelVolume.mountPath %s" .name .basePath $.Values.modelVolume.mountPath) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if .Values.fleet.enabled -}}
{{- range list "admin_address" "fleet_member" -}}
{{- if hasKey $.Values.flags . -}}{{- fail (printf "flags: fleet.enabled sets %s" .) -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- if eq (int .Values.service.grpcPort) (int .Values.service.httpPort) -}}
{{- fail (printf "service: grpcPort and httpPort are both %d" (int .Values.service.grpcPort)) -}}
{{- end -}}
{{- if gt (int .Values.autoscaling.minReplicas) (int .Values.autoscaling.maxReplicas) -}}
{{- fail "autoscaling: minReplicas is above maxReplicas" -}}
{{- end -}}
{{- if and (eq (toString .Values.workload.maxSurge) "0") (eq (toString .Values.workload.maxUnavailable) "0") -}}
{{- fail "workload: maxSurge and maxUnavailable are both 0, so no pod could be replaced" -}}
{{- end -}}
{{- end -}}

{{/* The scheme of the servers' HTTP. */}}
{{- define "millpond.httpScheme" -}}
{{- if .Values.flags.rest_ssl_config_file }}HTTPS{{ else }}HTTP{{ end -}}
{{- end -}}
