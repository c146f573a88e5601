{{- define "grpo-operator.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 52 | trimSuffix "-" }}
{{- end }}

{{- define "grpo-operator.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 52 | trimSuffix "-" }}
{{- else if contains (include "grpo-operator.name" .) .Release.Name }}
{{- .Release.Name | trunc 52 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "grpo-operator.name" .) | trunc 52 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "grpo-operator.serviceAccountName" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "grpo-operator.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- required "serviceAccount.name must name an existing account where serviceAccount.create is false" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- define "grpo-operator.selectorLabels" -}}
app.kubernetes.io/name: {{ include "grpo-operator.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: operator
{{- end }}

{{- define "grpo-operator.labels" -}}
{{ include "grpo-operator.selectorLabels" . }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/part-of: grpo-operator
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{/* Reference of an image: a digest wins over a tag. Takes (dict "image" IMAGE "root" $). */}}
{{- define "grpo-operator.image" -}}
{{- if .image.digest -}}
{{ .image.repository }}@{{ .image.digest }}
{{- else -}}
{{ .image.repository }}:{{ .image.tag | default .root.Chart.AppVersion }}
{{- end }}
{{- end }}

{{/* What the operator may do with jobs and their children; nothing more, and no Secret. */}}
{{- define "grpo-operator.rules" -}}
- apiGroups: [grpo.dev]
  resources: [grpojobs]
  verbs: [delete, list, watch]
- apiGroups: [grpo.dev]
  resources: [grpojobs/status]
  verbs: [patch]
- apiGroups: [""]
  resources: [pods, services]
  verbs: [create, delete, get, list, watch]
{{- if and (has "gated" .Values.rbac.gangBackends) (not .Values.watchNamespaces) }}
- apiGroups: [""]
  resources: [nodes]
  verbs: [list, watch]
- apiGroups: [""]
  resources: [pods]
  verbs: [patch]
{{- end }}
- apiGroups: [""]
  resources: [configmaps]
  verbs: [create, delete, get, list, watch]
- apiGroups: [""]
  resources: [persistentvolumeclaims]
  verbs: [create, get, list, watch]
- apiGroups: [""]
  resources: [events]
  verbs: [create, list, patch]
{{- if has "native" .Values.rbac.gangBackends }}
- apiGroups: [scheduling.k8s.io]
  resources: [workloads, podgroups]
  verbs: [create, delete, get, list, watch]
# Admission by OwnerReferencesPermissionEnforcement, as in OpenShift, asks for it: a Workload goes after its PodGroup.
- apiGroups: [scheduling.k8s.io]
  resources: [workloads/finalizers]
  verbs: [update]
{{- end }}
{{- if has "kueue" .Values.rbac.gangBackends }}
- apiGroups: [kueue.x-k8s.io]
  resources: [workloads]
  verbs: [delete, get]
{{- end }}
{{- range $backend, $group := dict "volcano" "scheduling.volcano.sh" "coscheduling" "scheduling.x-k8s.io" "kai" "scheduling.run.ai" }}
{{- if has $backend $.Values.rbac.gangBackends }}
- apiGroups: [{{ $group }}]
  resources: [podgroups]
  verbs: [create, delete, get, list, watch]
{{- end }}
{{- end }}
{{- end }}
