#!/usr/bin/env bash
# Rewrites go.mod and go.sum after a change in versions.env. Commit the result.
#
# One module builds every program, so that they share their dependencies. k8s.io/kubernetes replaces its staging modules
# by folders; they are also published, under the same version with a leading 0. The modules that determine the API
# server's behaviour (CEL, OpenAPI, server-side apply) keep the versions that Kubernetes chose, even if helm wants others.
set -euo pipefail
cd "$(dirname "$0")"
. ./versions.env

theirs=$(go mod download -json "k8s.io/kubernetes@v$KUBERNETES_VERSION" | sed -n 's/.*"GoMod": "\(.*\)".*/\1/p')
staging=v0.${KUBERNETES_VERSION#*.}
{
    echo "module hapax.dev/kubernetes"
    echo
    grep -m1 '^go ' "$theirs"
    grep -m1 '^godebug ' "$theirs"
    cat <<M

tool (
	github.com/containerd/containerd/v2/cmd/containerd
	github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2
	github.com/containerd/containerd/v2/cmd/ctr
	github.com/containernetworking/plugins/plugins/ipam/host-local
	github.com/containernetworking/plugins/plugins/main/ptp
	github.com/containernetworking/plugins/plugins/meta/portmap
	go.etcd.io/etcd/etcdctl/v3
	go.etcd.io/etcd/etcdutl/v3
	helm.sh/helm/v4/cmd/helm
)

require (
	github.com/containerd/containerd/v2 v$CONTAINERD_VERSION
	github.com/containernetworking/plugins v$CNI_VERSION
	github.com/coredns/coredns v$COREDNS_VERSION
	go.etcd.io/etcd/etcdctl/v3 v$ETCD_VERSION
	go.etcd.io/etcd/etcdutl/v3 v$ETCD_VERSION
	go.etcd.io/etcd/server/v3 v$ETCD_VERSION
	helm.sh/helm/v4 v$HELM_VERSION
	k8s.io/kubernetes v$KUBERNETES_VERSION
)

replace (
M
    sed -nE "s#^(replace)?[[:space:]]*(k8s\.io/[a-z-]+) => \./staging/src/.*#	\2 => \2 $staging#p" "$theirs"
    for module in github.com/google/cel-go k8s.io/kube-openapi sigs.k8s.io/structured-merge-diff/v6; do
        awk -v module="$module" '$1 == module { print "\t" module " => " module " " $2; exit }' "$theirs"
    done
    echo ")"
} >go.mod
rm -f go.sum
go mod tidy
