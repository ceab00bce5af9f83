#!/usr/bin/env bash
# Builds what lints the chart's alert rules and its dashboard, from Go modules whose sums go.sum pins, into the user's
# cache. Prints the program's path. Its folder is named by a hash of everything that decides what is built, so a second
# run, from whatever clone, finds it. Exit code 3: there is no Go toolchain.
#   build.sh promtool                  builds where needed: three minutes on two cores
#   build.sh dashboard-linter          another one to two
#   build.sh --find promtool           only looks; exit code 4 where nothing is built
# After a change of a version in NAME/go.mod: `go mod tidy` there. The linter's author has no release: where the
# checksum database does not know his commit, that one command takes GONOSUMDB=github.com/grafana/dashboard-linter.
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
flock 9 # one build at a time on a machine; whoever waited finds it done
if [[ ! -x $folder/$name ]]; then
    say "building from Go modules (once)"
    rm -rf "$folder.new"
    mkdir -p "$folder.new"
    # promtool without the discovery of targets in other people's clouds: nobody needs it to look at rules.
    (cd "$name" && CGO_ENABLED=0 GOFLAGS="-trimpath -buildvcs=false -mod=readonly ${HAPAX_KUBE_GOFLAGS:-}" \
        nice -n 10 go build -tags remove_all_sd -ldflags "-s -w" -o "$folder.new/" tool >&2)
    rm -rf "$folder"
    mv "$folder.new" "$folder"
    say "built: $folder"
fi
echo "$folder/$name"
