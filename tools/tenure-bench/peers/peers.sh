#!/bin/sh
# Installs other job queues, each from its registry, into a directory outside the repository, for
# `tenure-bench jobs --peers DIR`. A peer whose toolchain is missing is left out. README.md has the rest.
#
# usage: peers.sh DIR [NAME...]      NAME: graphile river effectum bullmq; all of them unless named
set -eu

here=$(cd "$(dirname "$0")" && pwd)
[ $# -ge 1 ] || { sed -n '2,5p' "$0" >&2; exit 2; }
mkdir -p "$1"
dir=$(cd "$1" && pwd)
shift
case "$dir/" in "$(cd "$here/../../.." && pwd)"/*) echo "peers.sh: $dir is inside the repository" >&2; exit 2 ;; esac
[ $# -gt 0 ] || set -- graphile river effectum bullmq

left_out() {
    echo "left out: $1: $2" >&2
    rm -f "$dir/$1"
}

# A script that runs a driver in the place of itself, so that a signal reaches it.
wrapper() {
    printf '#!/bin/sh\nexec %s "$@"\n' "$2" > "$dir/$1"
    chmod +x "$dir/$1"
}

node_peer() { # name, packages
    command -v npm > /dev/null || { left_out "$1" "npm is missing"; return; }
    mkdir -p "$dir/node"
    cp "$here/$1.mjs" "$dir/node/"
    # npm takes the newest version that this Node runs.
    (cd "$dir/node" && { [ -f package.json ] || npm init -y > /dev/null; } &&
        npm install --no-audit --no-fund --no-progress --engine-strict $2 > /dev/null) ||
        { left_out "$1" "npm failed"; return; }
    wrapper "$1" "node $dir/node/$1.mjs"
}

go_peer() {
    command -v go > /dev/null || { left_out river "go is missing"; return; }
    mkdir -p "$dir/river-go"
    cp "$here/river.go" "$dir/river-go/main.go"
    (cd "$dir/river-go" && { [ -f go.mod ] || go mod init peer; } && go mod tidy && go build -o ../river .) ||
        left_out river "go failed"
}

rust_peer() { # name, package
    name=$1 package=$2
    command -v cargo > /dev/null || { left_out "$name" "cargo is missing"; return; }
    crate="$dir/$name-rust"
    mkdir -p "$crate/src"
    cp "$here/$name.rs" "$crate/src/main.rs"
    (
        cd "$crate"
        if [ ! -f Cargo.toml ]; then
            printf '[package]\nname = "peer-%s"\nversion = "0.0.0"\nedition = "2024"\n[workspace]\n' "$name" > Cargo.toml
            cargo add "$package" tokio --features tokio/full
        fi
        version=$(cargo pkgid "$package" | sed 's/.*[#@]//')
        env "$(echo "$name" | tr a-z A-Z)_VERSION=$version" cargo build --release --target-dir "$crate/target"
        cp "target/release/peer-$name" "../$name"
    ) || left_out "$name" "cargo failed"
}

for name in "$@"; do
    case $name in
        graphile) node_peer graphile graphile-worker ;;
        bullmq) node_peer bullmq "bullmq ioredis" ;;
        river) go_peer ;;
        effectum) rust_peer effectum effectum ;;
        *) echo "peers.sh: no peer $name" >&2; exit 2 ;;
    esac
done
