#!/usr/bin/env bash
# Builds the linters of the chart's alert rules and dashboard from Go modules whose sums go.sum pins, into the user's
# cache. Prints the program's path. The folder's name is a hash of all inputs of the build, so a second run from any
# clone finds it. Exit code 3: there is no Go toolchain.
#   build.sh promtool                  builds if needed: three minutes on two cores
#   build.sh dashboard-linter          another one to two minutes
#   build.sh --find promtool           does not build; exit code 4 if there is no program
# After a change of a version in NAME/go.mod, run `go mod tidy` there. dashboard-linter has no releases. If the checksum
# database does not know its commit, run that command with GONOSUMDB=github.com/grafana/dashboard-linter.
set -euo pipefail
cd "$(dirname "$0")"

find=
if [[ ${1:-} == --find ]]; then find=1; shift; fi
name=${1:-}
[[ $name == promtool || $name == dashboard-linter ]] || { echo "usage: build.sh [--find] promtool|dashboard-linter" >&2; exit 2; }

cache=${XDG_CACHE_HOME:-$HOME/.cache}/hapax
hash=$(cat "$name/go.mod" "$name/go.sum" build.sh | sha256sum | cut -c 1-16)
folder=$cache/$name-$hash

say() { printf '%s: %s\n' "$name" "$*" >&2; }

if [[ -x $folder/$name ]]; then
    echo "$folder/$name"
    exit 0
fi
[[ -z $find ]] || exit 4
command -v go >/dev/null || { say "building needs a Go toolchain"; exit 3; }

mkdir -p "$cache"
exec 9>"$cache/$name.lock"
flock 9 # one build at a time on a machine; a process that waited here finds the result
if [[ ! -x $folder/$name ]]; then
    say "building from Go modules (once)"
    rm -rf "$folder.new"
    mkdir -p "$folder.new"
    # remove_all_sd leaves out service discovery, which checking rules does not need.
    (cd "$name" && CGO_ENABLED=0 GOFLAGS="-trimpath -buildvcs=false -mod=readonly ${HAPAX_KUBE_GOFLAGS:-}" \
        nice -n 10 go build -tags remove_all_sd -ldflags "-s -w" -o "$folder.new/" tool >&2)
    rm -rf "$folder"
    mv "$folder.new" "$folder"
    say "built: $folder"
fi
echo "$folder/$name"
