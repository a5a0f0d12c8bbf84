{{- define "rsnotify-hub.labels" -}}
{app.kubernetes.io/name: rsnotify-hub, app.kubernetes.io/instance: {{ .Release.Name }}}
{{- end }}
