#!/usr/bin/env bash
# Builds a Kubernetes for the tests, and helm, from Go modules whose sums go.sum pins, into the user's cache.
# Prints the folder of the binaries. The folder's name is a hash of all inputs of the build, so a second run from any
# clone finds it. Exit code 3: there is no Go toolchain.
#   build.sh            builds if needed
#   build.sh --find     does not build; exit code 4 if there are no binaries
set -euo pipefail
cd "$(dirname "$0")"
. ./versions.env

cache=${XDG_CACHE_HOME:-$HOME/.cache}/hapax
hash=$(cat versions.env go.mod go.sum build.sh kubernetes/main.go coredns/main.go pause/main.go | sha256sum | cut -c 1-16)
folder=$cache/kubernetes-$KUBERNETES_VERSION-$hash

say() { printf 'kubernetes: %s\n' "$*" >&2; }

if [[ -f $folder/complete ]]; then
    echo "$folder"
    exit 0
fi
[[ ${1:-} != --find ]] || exit 4
command -v go >/dev/null || { say "building needs a Go toolchain"; exit 3; }

mkdir -p "$cache"
exec 9>"$cache/kubernetes.lock"
flock 9 # one build at a time on a machine; a process that waited here finds the result
if [[ -f $folder/complete ]]; then
    echo "$folder"
    exit 0
fi

# What `kubectl version` and the API server report; without it kubectl complains of v0.0.0-master.
IFS=. read -r major minor _ <<<"$KUBERNETES_VERSION"
flags="-s -w"
for package in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
    flags+=" -X $package.gitMajor=$major -X $package.gitMinor=$minor -X $package.gitVersion=v$KUBERNETES_VERSION"
    flags+=" -X $package.gitTreeState=clean -X $package.buildDate=1970-01-01T00:00:00Z"
done
flags+=" -X helm.sh/helm/v4/internal/version.version=v$HELM_VERSION"
flags+=" -X github.com/containerd/containerd/v2/version.Version=v$CONTAINERD_VERSION"

say "building $KUBERNETES_VERSION and helm $HELM_VERSION from Go modules (once; six to ten minutes on two cores)"
rm -rf "$folder.new"
mkdir -p "$folder.new"
# One go command for all: packages and links run in parallel, and every package is compiled once.
CGO_ENABLED=0 GOFLAGS="-trimpath -buildvcs=false -mod=readonly ${HAPAX_KUBE_GOFLAGS:-}" \
    nice -n 10 go build -tags selinux,notest,grpcnotrace,no_btrfs -ldflags "$flags" -o "$folder.new/" \
    ./kubernetes ./coredns ./pause tool >&2
for name in kube-apiserver kube-controller-manager kube-scheduler kube-proxy kubelet kubectl etcd; do
    ln -s kubernetes "$folder.new/$name"
done
touch "$folder.new/complete"
rm -rf "$folder"
mv "$folder.new" "$folder"
say "built: $folder"
echo "$folder"
