{{/* The metadata and the spec of a pod, for a Deployment or a StatefulSet. */}}
{{- define "millpond.pod" -}}
{{- include "millpond.check" . -}}
{{- $hasUrls := include "millpond.hasUrls" . -}}
{{- $hasVolume := include "millpond.hasDirectories" . -}}
metadata:
  labels:
    {{- include "millpond.selectorLabels" . | nindent 4 }}
    {{- with .Values.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- with .Values.podAnnotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  serviceAccountName: {{ include "millpond.serviceAccountName" . | quote }}
  automountServiceAccountToken: false
  # Longer than the drain, or the kernel would end requests that the server still answers. A member of a
  # fleet serves on for up to 7 s first, until the fleet knows that it drains.
  terminationGracePeriodSeconds: {{ add .Values.drain.preStopSeconds .Values.drain.seconds .Values.drain.marginSeconds (ternary 7 0 .Values.fleet.enabled) }}
  securityContext:
    {{- include "millpond.podSecurityContext" . | nindent 4 }}
  {{- with .Values.imagePullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  containers:
    - name: millpond
      image: {{ include "millpond.image" . | quote }}
      imagePullPolicy: {{ .Values.image.pullPolicy }}
      # The image's entry point adds the ports.
      args:
        - --model_config_file=/etc/millpond/models.config
        - --model_config_file_poll_wait_seconds={{ int64 .Values.configPollSeconds }}
        - --model_settings_file=/etc/millpond/model_settings.toml
        {{- if $hasUrls }}
        - --model_cache_directory=/var/cache/millpond
        - --model_cache_bytes={{ .Values.objectStorage.cacheBytesPerModel | int64 }}
        - --model_store_poll_wait_seconds={{ int64 .Values.objectStorage.pollSeconds }}
        {{- end }}
        - --state_directory=/var/lib/millpond
        - --drain_seconds={{ int64 .Values.drain.seconds }}
        - --log_format=json
        {{- if .Values.fleet.enabled }}
        - --fleet_member=true
        # A network policy lets only the coordinator reach it.
        - --admin_address=0.0.0.0:8599
        {{- end }}
        {{- /* toJson writes a large number without an exponent. */}}
        {{- range $name, $value := .Values.flags }}
        - {{ printf "--%s=%s" $name (kindIs "string" $value | ternary $value (toJson $value)) | quote }}
        {{- end }}
      {{- if or .Values.extraEnv (and $hasUrls .Values.objectStorage.environment) }}
      env:
        {{- if $hasUrls }}
        {{- range $name, $value := .Values.objectStorage.environment }}
        - name: {{ $name }}
          value: {{ $value | quote }}
        {{- end }}
        {{- end }}
        {{- with .Values.extraEnv }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      {{- end }}
      {{- if and $hasUrls .Values.objectStorage.secretName }}
      envFrom:
        - secretRef:
            name: {{ .Values.objectStorage.secretName | quote }}
      {{- end }}
      ports:
        - name: grpc
          containerPort: 8500
          protocol: TCP
        - name: http
          containerPort: 8501
          protocol: TCP
        {{- if .Values.fleet.enabled }}
        - name: admin
          containerPort: 8599
          protocol: TCP
        {{- end }}
      startupProbe:
        httpGet: {path: /healthz, port: http, scheme: {{ include "millpond.httpScheme" . }}}
        {{- toYaml .Values.probes.startup | nindent 8 }}
      readinessProbe:
        httpGet: {path: /readyz, port: http, scheme: {{ include "millpond.httpScheme" . }}}
        {{- toYaml .Values.probes.readiness | nindent 8 }}
      # It answers while models load and while the server drains, so that neither ends in a kill.
      livenessProbe:
        httpGet: {path: /healthz, port: http, scheme: {{ include "millpond.httpScheme" . }}}
        {{- toYaml .Values.probes.liveness | nindent 8 }}
      {{- if .Values.drain.preStopSeconds }}
      lifecycle:
        preStop:
          exec:
            command: [sleep, {{ .Values.drain.preStopSeconds | quote }}]
      {{- end }}
      securityContext:
        {{- include "millpond.containerSecurityContext" . | nindent 8 }}
      resources:
        {{- toYaml .Values.resources | nindent 8 }}
      volumeMounts:
        # The whole directory: a file that is mounted with subPath never changes.
        - name: config
          mountPath: /etc/millpond
          readOnly: true
        {{- if $hasVolume }}
        - name: models
          mountPath: {{ .Values.modelVolume.mountPath }}
          readOnly: true
          {{- with .Values.modelVolume.subPath }}
          subPath: {{ . | quote }}
          {{- end }}
        {{- end }}
        {{- if $hasUrls }}
        - name: cache
          mountPath: /var/cache/millpond
        {{- if .Values.objectStorage.fileSecretName }}
        - name: credentials
          mountPath: /etc/millpond-credentials
          readOnly: true
        {{- end }}
        {{- end }}
        - name: state
          mountPath: /var/lib/millpond
        # The socket for `kubectl exec POD -- millpond status`.
        - name: tmp
          mountPath: /tmp
        {{- with .Values.extraVolumeMounts }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
  volumes:
    - name: config
      configMap:
        name: {{ include "millpond.fullname" . | quote }}
    {{- if $hasVolume }}
    - name: models
      {{- if eq .Values.modelVolume.kind "hostPath" }}
      hostPath:
        path: {{ .Values.modelVolume.hostPath | quote }}
        type: Directory
      {{- else if eq .Values.modelVolume.kind "existingClaim" }}
      persistentVolumeClaim:
        claimName: {{ .Values.modelVolume.existingClaim | quote }}
        readOnly: true
      {{- else }}
      persistentVolumeClaim:
        claimName: {{ include "millpond.fullname" . }}-models
      {{- end }}
    {{- end }}
    {{- if and $hasUrls .Values.objectStorage.fileSecretName }}
    - name: credentials
      secret:
        secretName: {{ .Values.objectStorage.fileSecretName | quote }}
        defaultMode: 0440
    {{- end }}
    {{- if eq .Values.workload.kind "Deployment" }}
    {{- if $hasUrls }}
    - name: cache
      emptyDir:
        sizeLimit: {{ .Values.objectStorage.cacheSize }}
    {{- end }}
    - name: state
      emptyDir:
        sizeLimit: {{ .Values.workload.stateSize }}
    {{- end }}
    - name: tmp
      emptyDir:
        sizeLimit: 64Mi
    {{- with .Values.extraVolumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- with .Values.priorityClassName }}
  priorityClassName: {{ . | quote }}
  {{- end }}
  {{- with .Values.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.affinity }}
  affinity:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- if .Values.spreadOverNodes }}
  topologySpreadConstraints:
    - maxSkew: 1
      topologyKey: kubernetes.io/hostname
      whenUnsatisfiable: ScheduleAnyway
      labelSelector:
        matchLabels:
          {{- include "millpond.selectorLabels" . | nindent 10 }}
  {{- end }}
{{- end -}}

{{/* A claim of each pod of a StatefulSet. Takes a list: the root, the name, the size. */}}
{{- define "millpond.claim" -}}
{{- $root := index . 0 -}}
- metadata:
    name: {{ index . 1 }}
  spec:
    accessModes: [ReadWriteOnce]
    {{- with $root.Values.workload.storageClassName }}
    storageClassName: {{ . | quote }}
    {{- end }}
    resources:
      requests:
        storage: {{ index . 2 }}
{{- end -}}
