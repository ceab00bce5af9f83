#!/usr/bin/env bash
# Saves the volumes of a Hapax release, including etcd's, to one file, and restores them from it.
#   scripts/volumes.sh save    NAMESPACE RELEASE IMAGE FILE
#   scripts/volumes.sh restore NAMESPACE RELEASE IMAGE FILE     into a namespace that has no such volumes
# No pod of the release may run meanwhile, because all volumes must be of one moment. IMAGE is the image of Hapax: a pod
# of it mounts every volume and does the work.
set -euo pipefail
[[ $# == 5 ]] || { sed -n '2,6s/^# \{0,1\}//p' "$0" >&2; exit 2; }
verb=$1 namespace=$2 release=$3 image=$4 file=$5
pod=$release-volumes

say() { printf 'volumes: %s\n' "$*" >&2; }
kube() { kubectl --namespace "$namespace" "$@"; }

claims() { kube get persistentvolumeclaims -l "app.kubernetes.io/instance=$release,app.kubernetes.io/component!=etcd-keeper" -o name | sed 's#.*/##'; }

start_pod() { # with every claim given, at /volumes/CLAIM
    local mounts="" volumes="" claim
    for claim in "$@"; do
        mounts+="{name: $claim, mountPath: /volumes/$claim},"
        volumes+="{name: $claim, persistentVolumeClaim: {claimName: $claim}},"
    done
    kube apply -f - >/dev/null <<Y
apiVersion: v1
kind: Pod
metadata: {name: $pod}
spec:
  restartPolicy: Never
  automountServiceAccountToken: false
  securityContext: {runAsNonRoot: true, runAsUser: 10001, runAsGroup: 10001, fsGroup: 10001, seccompProfile: {type: RuntimeDefault}}
  containers:
    - name: volumes
      image: $image
      imagePullPolicy: IfNotPresent
      command: [python3, -c, "import signal; signal.pause()"]
      securityContext: {allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: {drop: [ALL]}}
      volumeMounts: [${mounts%,}]
  volumes: [${volumes%,}]
Y
    trap 'kube delete pod "$pod" --ignore-not-found --grace-period=1 >/dev/null' EXIT
    kube wait "pod/$pod" --for=condition=Ready --timeout=120s >/dev/null
}

case $verb in
save)
    mapfile -t names < <(claims)
    ((${#names[@]})) || { say "no volumes of $release in $namespace"; exit 1; }
    running=$(kube get pods -l "app.kubernetes.io/instance=$release" -o name)
    [[ -z $running ]] || { say "still running: ${running//$'\n'/ }"; exit 1; }
    start_pod "${names[@]}"
    # FILE.claims has the claims' names, sizes, classes and labels.
    kube get persistentvolumeclaims "${names[@]}" -o json | python3 -c '
import json, sys
items = [{"apiVersion": "v1", "kind": "PersistentVolumeClaim",
          "metadata": {"name": each["metadata"]["name"], "labels": each["metadata"].get("labels", {})},
          "spec": {key: each["spec"][key] for key in ("accessModes", "resources", "storageClassName")
                   if key in each["spec"]}} for each in json.load(sys.stdin)["items"]]
json.dump({"apiVersion": "v1", "kind": "List", "items": items}, sys.stdout)' >"$file.claims"
    # The root folders of the volumes are left out: they belong to the storage provider.
    kube exec "$pod" -- sh -c "cd /volumes && find . -mindepth 2 -maxdepth 2 ! -name lost+found -print0 |
        tar --null --files-from=- -cf -" >"$file.new"
    mv "$file.new" "$file"
    say "saved ${names[*]}"
    ;;
restore)
    [[ -z $(claims) ]] || { say "$namespace already has volumes of $release; restoring would overwrite them"; exit 1; }
    kube create -f "$file.claims" >/dev/null
    mapfile -t names < <(claims)
    start_pod "${names[@]}"
    kube exec -i "$pod" -- tar -C /volumes -xpf - <"$file"
    say "restored ${names[*]}"
    ;;
*)
    say "save or restore, not $verb"
    exit 2
    ;;
esac
