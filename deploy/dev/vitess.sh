#!/usr/bin/env bash
# Vitess for development and tests, on 127.0.0.1 only, with its own data folder; no system service. One keyspace,
# nos_ec, of one shard, on three MySQL servers with semi-synchronous replication: vtgate (for clients), three vttablets,
# vtctld, vtorc (which replaces a lost primary) and etcd.
# usage: deploy/dev/vitess.sh start|stop|status|install      a second start restarts processes that died
#                                                            and renews the data of a primary that was replaced
#        deploy/dev/vitess.sh run PROGRAM ARGUMENT...        run vtctldclient, or a program of MySQL, such as:
#                                                            run vtctldclient GetTablets
#
# Vitess is built from its Go module, which takes some minutes, with the machine's Go if it is new enough, or else with
# that of requirements/clients.txt. MySQL and etcd are Debian's, which are only unpacked. Only unstable Debian has
# MySQL, so it is unpacked with all libraries that it needs, down to the C library.
#
# The last word of start and status is the URL of its database; every user may log in, without a password.
#
# Environment, besides that of base.sh:
#   NOS_EC_DEV_PORT  port of vtgate (default 13306); the other processes take free ports between 20000 and 29999
#   NOS_EC_DEV_FAST  1: commits do not wait for the disk. For test runs only: a crash of the machine loses data
#   NOS_EC_DEV_KEYSPACES  how many keyspaces there are (default 1): the others are nos_ec_2, nos_ec_3 and so on, each on
#                         a MySQL server of its own. A cell can use one, and tables can be moved to one

name=vitess
. "$(dirname "$0")/base.sh"
version=v0.24.4 # of the Go module: Vitess 24.0.4
sum=h1:fjIFc28fGYF6Bxu4heHsKvx+huPbA4NmIeLJL4clbc8=
go_min=1.26.8
port=${NOS_EC_DEV_PORT:-13306}
vitess=$programs/vitess-$version
etcd=$programs/etcd-debian
mysql_series=9.7 # a series with long-term support. If Debian has moved on, write the series that it has now here
mysql=$programs/mysql-$mysql_series-debian
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
mapfile -t tablets < <(seq $((2 + ${NOS_EC_DEV_KEYSPACES:-1})))
processes=(vtgate vtorc "${tablets[@]/#/vttablet-}" vtctld "${tablets[@]/#/mysqld-}" etcd)
cell=dev
start_s_max=120
end_s_max=60
declare -A ports
topology=()
export VTDATAROOT=$base VT_MYSQL_ROOT=$base/mysql

# --- programs -----------------------------------------------------------------------------------------------------

need_program() {
    install_program "$mysql" .complete unpack_mysql
    if ! command -v apt-get || ! command -v dpkg-deb; then
        command -v etcd || missing "needs etcd; install it with your system's package manager"
    fi >/dev/null
    command -v etcd >/dev/null || install_program "$etcd" .complete unpack
    install_program "$vitess" .complete build
}

unpack() { unpack_package etcd-server "$1"; } # FOLDER

# The option for an empty list of installed packages makes apt fetch every library that the server needs.
unpack_mysql() { # FOLDER
    local apt=$1/apt mirror package
    local options=(-o Dir::Etc::sourcelist="$apt/sources.list" -o Dir::Etc::sourceparts=- -o Dir::State="$apt"
        -o Dir::State::status=/dev/null -o Dir::Cache="$apt" -o Debug::NoLocking=1 -o APT::Sandbox::User=root)
    mkdir -p "$apt/lists/partial" "$apt/archives/partial" &&
        mirror=$(debian_mirror) &&
        echo "deb [signed-by=$keyring] $mirror sid main" >"$apt/sources.list" &&
        apt-get "${options[@]}" update -q || return
    apt-get "${options[@]}" install -y -q --no-install-recommends --download-only \
        "mysql-server-core=$mysql_series.*" "mysql-client-core=$mysql_series.*" || {
        echo "If Debian's unstable suite has another series by now, set mysql_series in $0 to it."
        return 1
    }
    for package in "$apt"/archives/*.deb; do dpkg-deb --extract "$package" "$1" || return; done
    rm -r "$apt" "$1/usr/share/doc" "$1/usr/share/man" &&
        mysql_program "$1" mysqldump --version &&
        mysql_program "$1" mysqld --version &&
        touch "$1/.complete"
}

# The words that start a program with its own C library and loader. Plugins are loaded with the same libraries.
mysql_command() { # FOLDER PROGRAM
    local loader program
    loader=$(echo "$1"/usr/lib/*/ld-linux-*.so.*)
    program=$1/usr/bin/$2
    [ -e "$program" ] || program=$1/usr/sbin/$2
    printf '%s\n' "$loader" --library-path "$(dirname "$loader")" "$program"
}

mysql_program() { # FOLDER PROGRAM ARGUMENT...
    local command
    mapfile -t command < <(mysql_command "$1" "$2")
    "${command[@]}" "${@:3}"
}

# The module's own go.sum pins what it is built from. What Go downloads and compiles stays out of the home folder, and
# is removed afterwards.
build() { # FOLDER
    local go found
    go=$(go_program) &&
        export GOTOOLCHAIN=local GOFLAGS="-modcacherw -buildvcs=false -trimpath -p=2" GOPATH=$1/path GOCACHE=$1/cache &&
        found=$(cd "$1" && "$go" mod download -json "vitess.io/vitess@$version") &&
        grep -qF "\"Sum\": \"$sum\"" <<<"$found" &&
        GOBIN=$1/bin "$go" -C "$GOPATH/pkg/mod/vitess.io/vitess@$version" install ./go/cmd/vtgate ./go/cmd/vttablet \
            ./go/cmd/vtctld ./go/cmd/vtctldclient ./go/cmd/vtorc &&
        rm -r "$1/path" "$1/cache" &&
        touch "$1/.complete"
}

go_program() {
    local own
    own=$(command -v go) && is_new_enough "$(GOTOOLCHAIN=local go env GOVERSION)" && echo "$own" && return
    "$here/s3_clients.sh" compiler
}

is_new_enough() { printf 'go%s\n%s\n' "$go_min" "$1" | sort -CV; } # GOVERSION

etcd_program() { command -v etcd || echo "$etcd/usr/bin/etcd"; }

# --- processes ----------------------------------------------------------------------------------------------------

# Start a process unless it is running. IDENTITY is one of its arguments, which no other process has.
launch() { # NAME IDENTITY PROGRAM ARGUMENT...
    local process=$1 identity=$2
    shift 2
    ! running_pid "$process" >/dev/null || return 0
    echo "$identity" >"$base/run/$process.identity"
    setsid nohup "$@" "$identity" >>"$base/log/$process.log" 2>&1 </dev/null 9>&- &
    echo $! >"$base/run/$process.pid"
}

running_pid() { process_of "$base/run/$1.pid" "$(cat "$base/run/$1.identity" 2>/dev/null)"; }

running() {
    local process
    for process in "${processes[@]}"; do
        ! running_pid "$process" >/dev/null || echo "$process"
    done
}

forget_ended() {
    local file
    for file in "$base"/run/*.pid; do
        running_pid "$(basename "$file" .pid)" >/dev/null || rm -f "$file"
    done
}

# Vitess' programs refuse to run as root, so root runs them as nobody, who may use root's files. A user namespace would
# do, too, but is not possible within chroot.
launch_vitess() { # NAME IDENTITY ARGUMENT...
    local process=$1 identity=$2 grpc=${ports[$1_grpc]:-} as=()
    shift 2
    [ "$(id -u)" != 0 ] || as=(setpriv --reuid=65534 --regid=65534 --clear-groups \
        --inh-caps=+dac_override --ambient-caps=+dac_override)
    launch "$process" "$identity" "${as[@]}" "$vitess/bin/${process%-*}" \
        --port="${ports[$process]}" --bind-address=127.0.0.1 \
        ${grpc:+--grpc-port="$grpc" --grpc-bind-address=127.0.0.1} "${topology[@]}" "$@"
}

await() { # WHAT COMMAND...
    local what=$1 deadline=$((SECONDS + start_s_max)) file process
    shift
    until "$@" >/dev/null 2>&1; do
        for file in "$base"/run/*.pid; do
            process=$(basename "$file" .pid)
            running_pid "$process" >/dev/null || failed "$process died" "$base/log/$process.log"
        done
        [ "$SECONDS" -lt "$deadline" ] || failed "timed out waiting for $what; see $base/log"
        sleep 0.3
    done
}

end_process() { # NAME
    local waited
    signal_process "$(running_pid "$1")" TERM
    for ((waited = 0; waited < end_s_max * 5; waited++)); do
        running_pid "$1" >/dev/null || return 0
        sleep 0.2
    done
    signal_process "$(running_pid "$1")" KILL
    echo "$1 did not stop within $end_s_max s and was killed"
    sleep 0.2
}

# From the clients' side on, so that nothing is missed while it is still in use.
end() {
    local process
    [ -n "$(running)" ] || { echo "$name is not running"; return; }
    for process in $(running); do end_process "$process"; done
    [ -z "$(running)" ] || failed "still running: $(running | tr '\n' ' ')"
    rm -f "$base"/run/*
    echo "$name stopped"
}

# --- configuration ------------------------------------------------------------------------------------------------

# The addresses are in the topology, so they stay what they are, even if another process takes a port meanwhile.
know_ports() {
    local which number=$((20000 + port % 10000))
    if [ ! -e "$base/ports" ]; then
        for which in "${processes[@]}" etcd_peers vtctld_grpc vtgate_grpc \
            $(printf 'vttablet-%s_grpc ' "${tablets[@]}"); do
            number=$((20000 + (number + 97) % 10000))
            while answers_on "$number"; do number=$((20000 + (number + 97) % 10000)); done
            echo "$which $number"
        done >"$base/ports"
    fi
    while read -r which number; do ports[$which]=$number; done <"$base/ports"
    topology=(--topo-implementation=etcd2 "--topo-global-server-address=127.0.0.1:${ports[etcd]}"
        --topo-global-root=/vitess/global)
}

# The settings of sessions are those that the store asks for (nos_ec/adapters/sql/driver/engine.py): where they differ,
# vtgate reserves a connection for each session. vttablet reads this file as well, and needs two paths that MySQL no
# longer has.
write_mysql_configuration() { # NUMBER PORT
    local folder=$base/tablet-$1
    cat <<CNF
[mysqld]
basedir = $mysql/usr
datadir = $folder/data
innodb_data_home_dir = $folder/data
innodb_log_group_home_dir = $folder/data
tmpdir = $folder/tmp
secure-file-priv = $folder/tmp
socket = ${TMPDIR:-/tmp}/nos-ec-vitess-$2.sock
pid-file = $folder/mysqld.own
log-error = $base/log/mysqld-$1.log
slow-query-log-file = $folder/slow.log
general_log_file = $folder/general.log
port = $2
bind-address = 127.0.0.1
mysqlx = 0
server-id = $1
log-bin = $folder/data/binlog
relay-log = $folder/data/relay
relay-log-index = $folder/data/relay.index
relay_log_recovery = 1
gtid_mode = ON
enforce_gtid_consistency = 1
skip_replica_start = 1
super-read-only = 1
plugin-load = rpl_semi_sync_source=semisync_source.so;rpl_semi_sync_replica=semisync_replica.so;mysql_clone.so
rpl_semi_sync_source_timeout = 1000000000000000000
replica_net_timeout = 8
skip-name-resolve = 1
max_connections = 500
max_allowed_packet = 64M
innodb-buffer-pool-size = 128M
innodb-io-capacity = 2000
transaction-isolation = READ-COMMITTED
innodb_lock_wait_timeout = 5
lock_wait_timeout = 5
sql_mode = STRICT_ALL_TABLES,ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION
default-time-zone = +00:00
CNF
    [ "$(id -u)" != 0 ] || echo "user = root"
    [ "${NOS_EC_DEV_FAST:-0}" = 0 ] ||
        printf '%s\n' "innodb-flush-log-at-trx-commit = 0" "innodb-doublewrite = 0" "sync_binlog = 0"
    cat <<CNF
[vttablet]
relay-log-info-file = $folder/data/relay-log.info
master-info-file = $folder/data/master.info
CNF
}

# The users of Vitess' own config/init_db.sql. They log in on the socket; only replication uses a port.
users() {
    local user
    for user in vt_dba vt_app vt_appdebug vt_allprivs vt_filtered vt_monitoring; do
        echo "CREATE USER '$user'@'localhost';"
        echo "GRANT ALL ON *.* TO '$user'@'localhost' WITH GRANT OPTION;"
    done
    echo "CREATE USER 'vt_repl'@'%';"
    echo "GRANT REPLICATION SLAVE ON *.* TO 'vt_repl'@'%';"
    echo "CREATE USER 'vt_clone'@'%';"
    echo "GRANT BACKUP_ADMIN ON *.* TO 'vt_clone'@'%';"
}

make_data() { # NUMBER
    local folder=$base/tablet-$1 as=()
    [ ! -e "$folder/.complete" ] || return 0
    [ "$(id -u)" != 0 ] || as=(--user=root)
    rm -rf "$folder"
    mkdir -p "$folder/tmp"
    users >"$folder/users.sql"
    mysql_program "$mysql" mysqld --no-defaults --initialize-insecure "${as[@]}" --basedir="$mysql/usr" --datadir="$folder/data" \
        --tmpdir="$folder/tmp" --init-file="$folder/users.sql" --skip-log-bin >"$base/log/mysqld-$1.make" 2>&1 ||
        failed "the data folder of MySQL $1 cannot be created" "$base/log/mysqld-$1.make"
    touch "$folder/.complete"
}

control() { "$vitess/bin/vtctldclient" --server="127.0.0.1:${ports[vtctld_grpc]}" --action-timeout=20s "$@"; }

control_topology() { "$vitess/bin/vtctldclient" --server=internal "${topology[@]}" "$@"; }

make_cell() {
    control_topology GetCellInfo $cell ||
        control_topology AddCellInfo --root=/vitess/$cell --server-address="127.0.0.1:${ports[etcd]}" $cell
}

keyspace_of() { if [ "$1" -le 3 ]; then echo nos_ec; else echo "nos_ec_$(($1 - 2))"; fi; } # NUMBER

make_keyspace() { # KEYSPACE    a primary without replicas cannot wait for their acknowledgements
    local durability=semi_sync
    [ "$1" = nos_ec ] || durability=none
    control GetKeyspace "$1" || control CreateKeyspace --durability-policy=$durability "$1"
}

has_primary() { control GetTablets --keyspace="$1" --tablet-type=primary | grep -q primary; } # KEYSPACE

# vttablet asks the program for its version. Without this one, it would ask any other that the machine has.
write_mysqld() {
    local command
    mapfile -t command < <(mysql_command "$mysql" mysqld)
    mkdir -p "$VT_MYSQL_ROOT/bin"
    { echo '#!/bin/sh' && printf 'exec'; printf ' "%s"' "${command[@]}" && echo ' "$@"'; } >"$VT_MYSQL_ROOT/bin/mysqld"
    chmod +x "$VT_MYSQL_ROOT/bin/mysqld"
}

launch_mysqld() { # NUMBER ARGUMENT...
    local number=$1 configuration=$base/tablet-$1/my.cnf command
    shift
    make_data "$number"
    write_mysql_configuration "$number" "${ports[mysqld-$number]}" >"$configuration"
    mapfile -t command < <(mysql_command "$mysql" mysqld)
    # --defaults-file must come first, so the argument that identifies the process is another.
    launch "mysqld-$number" "--pid-file=$base/tablet-$number/mysqld.own" "${command[@]}" \
        "--defaults-file=$configuration" "$@"
}

launch_tablet() { # NUMBER
    local configuration=$base/tablet-$1/my.cnf
    launch_mysqld "$1"
    await "MySQL $1" answers_on "${ports[mysqld-$1]}"
    launch_vitess "vttablet-$1" "--mycnf-file=$configuration" --tablet-path="$cell-000000000$1" \
        --tablet-hostname=127.0.0.1 --init-keyspace="$(keyspace_of "$1")" --init-shard=0 --init-tablet-type=replica \
        --service-map=grpc-queryservice,grpc-tabletmanager,grpc-updatestream --health-check-interval=2s \
        --queryserver-config-max-result-size=1000000 --queryserver-config-transaction-cap=200 \
        --queryserver-config-transaction-timeout=20s --queryserver-config-query-timeout=120s
}

# A primary that was lost may have written a transaction that no replica acknowledged. Its server must not be used any
# more: its data is replaced by a copy of the new primary's.
renew_tablets() {
    local number primary executed
    primary=$(control GetTablets --keyspace=nos_ec --tablet-type=primary | sed -n "s/^$cell-0*\([0-9]*\) .*/\1/p")
    for number in "${tablets[@]}"; do
        [ "$number" != "$primary" ] && [ "$(keyspace_of "$number")" = nos_ec ] || continue
        executed=$(value_of "$number" "SELECT @@global.gtid_executed") &&
            executed=$(value_of "$primary" "SELECT GTID_SUBSET('${executed//\\n/}', @@global.gtid_executed)") &&
            [ "$executed" = 0 ] || continue
        echo "the data of MySQL $number differs from that of the primary, and is copied from it"
        renew_tablet "$number" "$primary"
    done
}

value_of() { # NUMBER QUERY    the query has one value, without spaces
    control ExecuteFetchAsDBA --json "$cell-000000000$1" "$2" | tr -d '\n "' | sed -n 's/.*,rows:\[\[\(.*\)\]\],.*/\1/p'
}

# When mysqld has copied everything, it ends, because nothing restarts it.
renew_tablet() { # NUMBER DONOR
    local donor=127.0.0.1:${ports[mysqld-$2]} deadline=$((SECONDS + start_s_max))
    end_process "vttablet-$1"
    end_process "mysqld-$1"
    forget_ended
    rm -rf "$base/tablet-$1"
    make_data "$1"
    cat >"$base/tablet-$1/clone.sql" <<SQL
SET GLOBAL clone_valid_donor_list = '$donor';
CLONE INSTANCE FROM 'vt_clone'@'127.0.0.1':${ports[mysqld-$2]} IDENTIFIED BY '';
SQL
    launch_mysqld "$1" "--init-file=$base/tablet-$1/clone.sql"
    while running_pid "mysqld-$1" >/dev/null; do
        [ "$SECONDS" -lt "$deadline" ] || failed "the data is not copied" "$base/log/mysqld-$1.log"
        sleep 0.2
    done
    forget_ended
    launch_tablet "$1"
}

# --- actions ------------------------------------------------------------------------------------------------------

start() {
    mkdir -p "$base/run" "$base/log"
    take_lock
    need_program
    know_ports
    running_pid vtgate >/dev/null || need_free_port "$port"
    forget_ended
    trap stop_after_failure EXIT
    trap 'exit 143' INT TERM
    write_mysqld
    local clients=http://127.0.0.1:${ports[etcd]} peers=http://127.0.0.1:${ports[etcd_peers]}
    launch etcd "--data-dir=$base/etcd" "$(etcd_program)" --listen-client-urls="$clients" \
        --advertise-client-urls="$clients" --listen-peer-urls="$peers" --initial-advertise-peer-urls="$peers" \
        --initial-cluster="default=$peers"
    await etcd make_cell
    launch_vitess vtctld "--pid-file=$base/vtctld.own" --service-map=grpc-vtctl,grpc-vtctld
    local number
    for number in "${tablets[@]}"; do
        await "vtctld to create a keyspace" make_keyspace "$(keyspace_of "$number")"
        launch_tablet "$number"
    done
    launch_vitess vtorc "--pid-file=$base/vtorc.own" --cell=$cell --instance-poll-time=1s --recovery-poll-duration=1s \
        --change-tablets-with-errant-gtid-to-drained
    for number in "${tablets[@]}"; do await "a primary" has_primary "$(keyspace_of "$number")"; done
    launch_vitess vtgate "--pid-file=$base/vtgate.own" --cell=$cell \
        --cells-to-watch=$cell --tablet-types-to-wait=PRIMARY --service-map=grpc-vtgateservice --enable-buffer \
        --mysql-server-port="$port" --mysql-server-bind-address=127.0.0.1 --mysql-auth-server-impl=none
    await vtgate answers_on "$port"
    renew_tablets
    echo "$port" >"$base/port"
    trap - EXIT INT TERM
    echo "$name is running as process $(running_pid vtgate) and $((${#processes[@]} - 1)) others"
    url
}

# A failed start leaves nothing running.
stop_after_failure() {
    local status=$?
    trap - EXIT
    [ "$status" = 0 ] || end >&2
    exit "$status"
}

url() { echo "mysql+pymysql://root@127.0.0.1:$(cat "$base/port")/nos_ec"; }

stop() {
    [ -d "$base/run" ] || { echo "$name is not running"; return; }
    take_lock
    end
}

status() {
    local found
    found=$(running | wc -l)
    [ "$found" != 0 ] || { echo "$name is not running"; exit 3; }
    [ "$found" = ${#processes[@]} ] || failed "only these are running: $(running | tr '\n' ' '); run start again"
    echo "$name is running as process $(running_pid vtgate) and $((${#processes[@]} - 1)) others"
    url
}

install() {
    mkdir -p "$base"
    need_program
    echo "$name is installed"
}

case "${1:-}" in
start | stop | status | install) "$1" ;;
run)
    know_ports
    case "${2:-}" in
    vtctldclient) control "${@:3}" ;;
    mysql | mysqldump | mysqlbinlog) mysql_program "$mysql" "${@:2}" ;;
    *) echo "usage: $0 run vtctldclient|mysql|mysqldump|mysqlbinlog ARGUMENT..." >&2; exit 1 ;;
    esac
    ;;
*) echo "usage: $0 start|stop|status|install | run PROGRAM ARGUMENT..." >&2; exit 1 ;;
esac
