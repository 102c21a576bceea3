#!/usr/bin/env bash
# Runs everything that must hold, the fast checks first. Needs Rust 1.95 and a C compiler, and
# installs what else is missing. The last line is always "N passed, N failed".
set -uo pipefail

# Debian packages the tests need, one per line: "PACKAGE COMMAND". An engine whose tests talk to a
# real server adds its line here. Where the command is not in PATH, or the package is there for a
# file, give its full path, with a * for what differs between versions.
NEEDED=(
    "redis-server redis-server"
    "etcd-server etcd"
    "etcd-client etcdctl"
    # Debian keeps the programs of PostgreSQL out of PATH; those that are in it are only wrappers,
    # which are there without a server too. That the package makes a database of its own, or fails
    # to, does not matter: it is not started, and the tests make theirs.
    "postgresql /usr/lib/postgresql/*/bin/initdb"
    "pgbouncer /usr/sbin/pgbouncer"
    # Servers are started through it, so that they die with the test that started them. Small disks
    # are made with another command of the package.
    "util-linux setpriv"
)

usage() {
    cat <<'HELP'
Usage: ./test.sh [--help]

Checks format, lints, house rules, all tests and the docs of the whole workspace.
The last line is "N passed, N failed"; the exit code is 0 only if every step passed.

Environment:
  NIGHTLY=1            longer random runs (TENURE_TEST_SCALE=nightly; otherwise ci)
  CARGO_TARGET_DIR     where Cargo builds, as usual
  TENURE_TEST_LIMIT    seconds after which tests that do not end are killed and count as failed (600)
  TENURE_TEST_HOME     where test servers keep their files (/dev/shm if there is room, or /tmp)
  TENURE_TEST_ETCD     directory with the etcd, etcdctl and etcdutl to test with (those in PATH)
HELP
}

main() {
    case "${1-}" in
        "") ;;
        -h | --help) usage && exit 0 ;;
        *) echo "test.sh: unknown argument '$1'; try --help" >&2 && exit 2 ;;
    esac
    cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")" || exit 1
    # Nothing here asks questions, so nothing may wait for an answer.
    exec </dev/null
    export TENURE_TEST_SCALE=ci
    if [[ "${NIGHTLY-}" == 1 ]]; then TENURE_TEST_SCALE=nightly; fi
    # Stores that sync every write are many times faster in memory, and the tests ask for rules.
    if [[ -z "${TENURE_TEST_HOME-}" && -w /dev/shm ]] && (( $(free_kib /dev/shm) > 2000000 )); then
        export TENURE_TEST_HOME=/dev/shm
    fi

    failed_steps=()
    log="$(mktemp)" || exit 1
    trap 'rm -f "$log"' EXIT

    step "tools" find_tools
    step "format" cargo fmt --all --check
    step "lints" cargo clippy --workspace --all-targets --all-features -- -D warnings
    step "lints without default features" \
        cargo clippy -p tenure --no-default-features -- -D warnings
    step "house rules" logged cargo_test -p tidy --no-fail-fast
    # The house rules have just run; here they would only be counted twice.
    step "tests" logged cargo_test --workspace --exclude tidy --all-features --no-fail-fast
    step "no test is skipped" nothing_ignored
    step "docs" env RUSTDOCFLAGS="-D warnings" \
        cargo doc --workspace --no-deps --all-features
    report
}

# step NAME COMMAND...: runs the command under a header and remembers whether it failed. The other
# steps run all the same: one run shows everything there is to mend.
step() {
    local name="$1" began="$SECONDS"
    shift
    printf '\n==> %s\n' "$name"
    if "$@"; then
        printf '==> %s: ok, %d s\n' "$name" "$((SECONDS - began))"
    else
        printf '==> %s: FAILED, %d s\n' "$name" "$((SECONDS - began))"
        failed_steps+=("$name")
    fi
}

free_kib() {
    df --output=avail -k "$1" | tail -n 1
}

# Shows the output as it comes and keeps a copy to count in.
logged() {
    "$@" 2>&1 | tee -a "$log"
}

# `cargo test`, each test binary under a script that ends it when a test hangs.
cargo_test() {
    cargo test --config "target.'cfg(unix)'.runner = ['$PWD/.ci/test-runner']" "$@"
}

find_tools() {
    # A shell that was not a login shell does not know where rustup put Cargo.
    if ! command -v cargo >/dev/null && [[ -d "${CARGO_HOME:-${HOME-}/.cargo}/bin" ]]; then
        PATH="${CARGO_HOME:-${HOME-}/.cargo}/bin:$PATH"
    fi
    if ! command -v cargo >/dev/null; then
        echo "cargo is missing; install Rust 1.95 from https://rustup.rs" >&2
        return 1
    fi
    cargo --version
    local line package command missing=0
    for line in "${NEEDED[@]}"; do
        read -r package command <<<"$line"
        need "$package" "$command" || missing=1
    done
    return "$missing"
}

# there COMMAND: whether it can be run, or is a file that others need.
there() {
    command -v "$1" >/dev/null || { [[ "$1" == /* ]] && compgen -G "$1" >/dev/null; }
}

# need PACKAGE COMMAND: installs the Debian package unless its command is there already.
need() {
    local package="$1" command="$2" root=()
    if there "$command"; then return 0; fi
    if ! command -v apt-get >/dev/null; then
        echo "$command is missing and there is no apt-get; install $package by hand" >&2
        return 1
    fi
    if [[ "$(id -u)" != 0 ]]; then
        if ! sudo -n true 2>/dev/null; then
            echo "$command is missing; as root: apt-get install $package" >&2
            return 1
        fi
        root=(sudo -n)
    fi
    echo "installing $package"
    local install=(env DEBIAN_FRONTEND=noninteractive sh -c "$INSTALL_QUIETLY" install "$package")
    # A fresh machine has no package lists yet; one that has them need not fetch them again.
    if ! "${root[@]}" "${install[@]}"; then
        if ! { "${root[@]}" apt-get update -q && "${root[@]}" "${install[@]}"; }; then
            echo "$package could not be installed" >&2
            return 1
        fi
    fi
    if ! there "$command"; then
        echo "$package is installed, but $command is still missing" >&2
        return 1
    fi
}

# Installs a package without starting the service it brings: a Redis on port 6379, or whatever
# comes with the next one, is not what whoever runs the tests asked for, and the tests start their
# own. Debian's packages ask policy-rc.d before they start anything, and 101 means no; there is no
# switch of apt-get for it (RUNLEVEL=1 is heard by init scripts, but not where systemd runs). The
# file stands only for as long as this takes. One that is there already is somebody's decision.
# shellcheck disable=SC2016
INSTALL_QUIETLY='
    policy=/usr/sbin/policy-rc.d
    if [ ! -e "$policy" ]; then
        trap "rm -f $policy" EXIT
        trap "exit 1" HUP INT TERM
        printf "#!/bin/sh\nexit 101\n" >"$policy" && chmod 755 "$policy" || exit 1
    fi
    apt-get install -y -q --no-install-recommends "$1"
'

# total WORD: the sum over all result lines, e.g. of "passed".
total() {
    sed 's/\x1b\[[0-9;]*m//g' "$log" | awk -v word="$1" '
        /^test result: / { for (i = 2; i <= NF; i++) if ($i == word ";") sum += $(i - 1) }
        END { print sum + 0 }'
}

nothing_ignored() {
    local ignored
    ignored="$(total ignored)"
    if [[ "$ignored" == 0 ]]; then return 0; fi
    echo "$ignored ignored; a test that cannot run has failed" >&2
    grep -a '^test .* \.\.\. ignored' "$log"
    return 1
}

report() {
    printf '\n'
    sed 's/\x1b\[[0-9;]*m//g' "$log" | grep -a '^test .* \.\.\. FAILED$'
    local name
    for name in "${failed_steps[@]}"; do echo "failed step: $name"; done
    local failed
    failed="$(total failed)"
    # A step that fails without a failed test (lints, a build that breaks) counts as one.
    if (( failed < ${#failed_steps[@]} )); then failed="${#failed_steps[@]}"; fi
    echo "$(total passed) passed, $failed failed"
    [[ "${#failed_steps[@]}" == 0 ]]
}

main "$@"
