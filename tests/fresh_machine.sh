#!/usr/bin/env bash
# What must work on a machine that has nothing but python3 and make: the commands of README.md, one after the other.
# usage: tests/fresh_machine.sh [TURN]   meant for a fresh machine (`make fresh`), where it leaves all behind that it
#                                        installs. With a TURN, which is a number, it runs what .ci/run does: the Debian
#                                        package, MySQL, or deploy/README.md, when TURN modulo 3 is 0, 1, or 2
# Ends at the first step that fails, with the ends of the logs that it wrote. Says how long each step took.

set -euo pipefail
cd "$(dirname "$0")/.."
data=${NOS_EC_DEV_DIR:-var/dev}
turn=${1:-}
times=()

step() { # NAME COMMAND...
    local what=$1 began=$SECONDS stamp status
    shift
    echo "--- $what"
    stamp=$(mktemp)
    # Not `"$@" || status=$?`: a function that is called so goes on after a command that fails.
    set +e
    (set -e && "$@")
    status=$?
    set -e
    times+=("$(printf '%4d s  %s' $((SECONDS - began)) "$what")")
    [ "$status" = 0 ] || fail "$what" "$status" "$stamp"
    rm "$stamp"
}

fail() { # NAME STATUS STAMP
    local log
    find "$data" -maxdepth 2 -name '*.log' -newer "$3" -print0 | while IFS= read -r -d '' log; do
        echo "the end of $log:"
        tail -n 20 "$log"
    done
    echo "FAILED: $1, with exit status $2. On a fresh machine it must not."
    show_times
    exit 1
} >&2

show_times() {
    echo "how long each step took:"
    printf '%s\n' "${times[@]}"
}

# One object through all servers: written, packed by a consumer, read back. Each database gets a store of its own.
use() { # DATABASE
    (
        set -a
        # shellcheck source=/dev/null
        . "$data/stack/nos-ec.env"
        set +a
        export NOS_EC_CEPH__NAMESPACE=$1 NOS_EC_KAFKA__TOPIC=$1 NOS_EC_CONFIG=deploy/dev/nos-ec.toml
        nos_ec() { .venv/bin/nos-ec --config deploy/dev/nos-ec.toml "$@"; }
        nos_ec init
        nos_ec put fresh/README.md README.md
        nos_ec producer --once
        nos_ec consumer --once
        nos_ec get fresh/README.md | cmp - README.md
    )
}

of_turn() { # NUMBER    Whether the step of this number runs
    [ -z "$turn" ] || [ $((turn % 3)) = "$1" ]
}

# The commands of deploy/README.md, and what they install.
deploy() { python3 tests/deploy_machine.py <"$data/stack/nos-ec.env"; }

step "make venv" make venv
! of_turn 0 || step "the Debian package" tests/fresh_package.sh
step "make demo" make demo DEMO_ARGS="--limit-objects 2000 --limit-bytes 50000000"
step "make demo, over S3, with the console" python3 tests/demo_console.py --s3 --limit-objects 500 --limit-bytes 20000000
databases=(mariadb)
! of_turn 1 || databases+=(mysql)
for database in "${databases[@]}"; do
    step "make up DATABASE=$database" make up DATABASE="$database"
    step "make stack-status ($database)" make stack-status
    step "init, put, pack, get ($database)" use "$database"
    [ "$database" != mariadb ] || ! of_turn 2 || step "deploy/README.md in a cluster" deploy
    step "make down ($database)" make down
done
show_times
