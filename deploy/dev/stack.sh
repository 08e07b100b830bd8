#!/usr/bin/env bash
# The real stack in one command, on 127.0.0.1, for development and tests: Ceph (12 OSDs), Kafka, and MariaDB, MySQL or
# Vitess.
# usage: deploy/dev/stack.sh up|down|status|clean|install
#   up      start all servers that are not running, at the same time; run it again to restart those that died.
#           deploy/dev/nos-ec.toml is the configuration of the stack
#   down    stop all servers; the data stays
#   status  one line per server
#   clean   down, and remove the data; installed programs stay
#   install install the programs of all servers, including MariaDB, MySQL, Prometheus and the S3 clients; starts nothing.
#           Vitess, which must be built, is installed when it is first started
#
# Environment, besides that of base.sh and ceph.sh (deploy/README.md has details):
#   NOS_EC_DEV_DATABASE       mysql, mariadb or vitess (default: that of the last `up`; at first, mariadb)
#   NOS_EC_DEV_CELLS          1 to 26: `up` also makes the databases of that many cells, and a configuration of a store of
#                             these cells (mysql and mariadb)
#   NOS_EC_DEV_CEPH_PORT, NOS_EC_DEV_KAFKA_PORT, NOS_EC_DEV_DATABASE_PORT    other ports than 13320, 19092 and 13306
#   NOS_EC_DEV_FAST           1: Kafka and the database do not wait for the disk
# Exit status: 0 done; 1 failed (status: only some servers are running); 3 something is missing and cannot be installed
# (status: 3 means that no server is running).

name=stack
. "$(dirname "$0")/base.sh"
unset NOS_EC_DEV_PORT
folder=$(dirname "$base")
databases=(mysql mariadb vitess)
pids=()

# --- the servers --------------------------------------------------------------------------------------------------

choose_database() {
    database=${NOS_EC_DEV_DATABASE:-$(cat "$base/database" 2>/dev/null || echo mariadb)}
    case " ${databases[*]} " in
    *" $database "*) ;;
    *) failed "NOS_EC_DEV_DATABASE is $database; it must be one of: ${databases[*]}" ;;
    esac
}

server() { # SERVER ACTION
    local port
    case $1 in
    ceph) port=${NOS_EC_DEV_CEPH_PORT:-} ;;
    kafka) port=${NOS_EC_DEV_KAFKA_PORT:-} ;;
    *) port=${NOS_EC_DEV_DATABASE_PORT:-} ;;
    esac
    exec env NOS_EC_DEV_DIR="$folder" ${port:+NOS_EC_DEV_PORT="$port"} "$here/$1.sh" "$2"
}

# Run an action of several servers at once, then show the output of each. Fails with the worst of their statuses.
each() { # ACTION SERVER...
    local action=$1 one pid status worst=0
    shift
    pids=()
    for one in "$@"; do
        server "$one" "$action" >"$base/$one.said" 9>&- &
        pids+=($!)
    done
    for pid in "${pids[@]}"; do
        status=0
        wait "$pid" || status=$?
        [ "$status" -le "$worst" ] || worst=$status
    done
    for one in "$@"; do one_line <"$base/$one.said"; done
    return "$worst"
}

# Join two lines into one: "kafka is running as process 7: 127.0.0.1:19092". Prints nothing if there are no lines.
one_line() { paste -s -d '|' | sed '/^$/d; s/ *|/: /g'; }

# Background jobs do not get the Ctrl-C of a terminal.
pass_on_end() {
    trap - INT TERM
    kill "${pids[@]}" 2>/dev/null || true
    wait
    exit 130
}

# --- actions ------------------------------------------------------------------------------------------------------

up() {
    choose_database
    check_cells
    local other
    for other in "${databases[@]}"; do
        [ "$other" != "$database" ] || continue
        ! (server "$other" status) >/dev/null 2>&1 ||
            failed "$other is running, and a store has one database; run \`down\` before switching to $database"
    done
    mkdir -p "$base"
    take_lock
    echo "$database" >"$base/database"
    local status=0
    each start ceph kafka "$database" || status=$?
    if [ "$status" != 0 ]; then
        echo "$name: incomplete; see above. The servers that started keep running: run up again, or down" >&2
        exit "$status"
    fi
    write_environment
    if [ -z "$(cell_names)" ]; then
        say_what_next "$here/nos-ec.toml"
    else
        write_cells
        say_what_next "$base/cells.toml"
    fi
}

check_cells() {
    local last
    last=$(cell_names | tail -n 1)
    [ -n "$last" ] || return 0
    [ "$database" != vitess ] || failed "the databases of cells are made on mysql or mariadb; choose one of them"
    ! (server "$database" status) >/dev/null 2>&1 || grep -q "nos_ec_$last;" "$folder/$database/init.sql" ||
        failed "$database is running, and makes the databases of cells when it starts; run \`down\` first"
}

down() {
    mkdir -p "$base"
    take_lock
    each stop ceph kafka "${databases[@]}" || failed "not all servers are down; see above"
    echo "$name is down; its data is in $folder"
}

status() {
    choose_database
    local one said status ran=0 stopped=0
    for one in ceph kafka "$database"; do
        status=0
        said=$( (server "$one" status) 2>&1) || status=$?
        one_line <<<"$said"
        case $status in
        0) ran=$((ran + 1)) ;;
        3) stopped=$((stopped + 1)) ;;
        esac
    done
    [ "$stopped" -lt 3 ] || exit 3
    [ "$ran" = 3 ] || exit 1
}

clean() {
    down
    local one
    for one in ceph kafka "${databases[@]}"; do rm -rf --one-file-system "${folder:?}/$one"; done
    rm -rf --one-file-system "$base"
    for one in prometheus s3_clients; do # `install` leaves only their logs here
        rm -f "$folder/$one/install.log" "$folder/$one/fetch.log"
        if [ -d "$folder/$one" ]; then rmdir --ignore-fail-on-non-empty "$folder/$one"; fi
    done
    echo "$name: the data in $folder was removed"
}

install() {
    mkdir -p "$base"
    each install ceph kafka mariadb mysql prometheus s3_clients
}

# --- how to use it ------------------------------------------------------------------------------------------------

# The settings of deploy/dev/nos-ec.toml, for a stack in another folder or on other ports.
write_environment() {
    printf '%s=%q\n' \
        NOS_EC_STORE__METADATA_URL "$(tail -n 1 "$base/$database.said")" \
        NOS_EC_CEPH__CONF_FILE "$(tail -n 1 "$base/ceph.said")" \
        NOS_EC_CEPH__KEYRING_FILE "$folder/ceph/client.nos-ec-front.keyring" \
        NOS_EC_KAFKA__SERVERS "$(tail -n 1 "$base/kafka.said")" >"$base/nos-ec.env"
}

# The configuration of a store of several cells: in one database server, in the same pools and on the same broker, each
# with a database, a namespace and a topic of its own.
write_cells() {
    local url cell
    url=$(tail -n 1 "$base/$database.said")
    cat >"$base/cells.toml" <<EOF
[store]
backend = "ceph"
directory = "a"
root = "$folder/cells"
[ceph]
conf_file = "$(tail -n 1 "$base/ceph.said")"
user = "client.nos-ec-front"
keyring_file = "$folder/ceph/client.nos-ec-front.keyring"
[log]
backend = "kafka"
[kafka]
servers = "$(tail -n 1 "$base/kafka.said")"
replication = 1
in_sync_min = 1
[audit]
folder = "$folder/cells/audit"
EOF
    for cell in $(cell_names); do
        cat <<EOF
[cells.$cell]
store.metadata_url = "${url}_$cell?ssl_disabled=true"
ceph.namespace = "$cell"
kafka.topic = "nos-ec-$cell"
EOF
    done >>"$base/cells.toml"
}

say_what_next() { # CONFIGURATION
    local command
    command=".venv/bin/nos-ec --config $(printf %q "${1#"$repository/"}")"
    echo
    echo "The stack's configuration is ${1#"$repository/"}. Next, in $repository:"
    if [ "$1" != "$here/nos-ec.toml" ]; then
        echo "  $command init"
        echo "  $command status"
        return
    fi
    is_where_expected || echo "  set -a; . $(printf %q "$base/nos-ec.env"); set +a       # because the stack is not in the usual place"
    echo "  $command init"
    local try=demo
    [ "$database" != vitess ] || try="put demo/README.md README.md" # a demo needs a database of its own
    echo "  $command $try"
}

is_where_expected() {
    [ "$folder" -ef "$programs" ] &&
        grep -q "^NOS_EC_STORE__METADATA_URL=.*:13306/" "$base/nos-ec.env" &&
        grep -q "^NOS_EC_KAFKA__SERVERS=.*:19092$" "$base/nos-ec.env"
}

trap pass_on_end INT TERM
case "${1:-}" in
up | down | status | clean | install) "$1" ;;
*) echo "usage: $0 up|down|status|clean|install" >&2; exit 1 ;;
esac
