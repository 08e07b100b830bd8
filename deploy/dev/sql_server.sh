# What mariadb.sh and mysql.sh have in common; sourced by them. They set: name, port, and the functions
# need_server (install what is missing), new_data_dir, server_command (prints one argument a line).
#
# Environment:
#   NOS_EC_DEV_DIR   where data, log, socket and pid go (default: var/dev in the repository, ignored by git)
#   NOS_EC_DEV_PORT  port on 127.0.0.1 (default: set by the script)
#   NOS_EC_DEV_FAST  1: commits do not wait for the disk. For test runs only: a crash of the machine loses data
# Exit status: 0 done; 1 failed; 3 something is missing and cannot be installed (status: 3 means not running).

set -eu
repository=$(cd "$(dirname "$0")/../.." && pwd)
base=${NOS_EC_DEV_DIR:-$repository/var/dev}/$name
port=${NOS_EC_DEV_PORT:-$port}
data=$base/data
pid_file=$base/server.pid
log=$base/server.log
# The path of a socket may have some 100 bytes at most, that of a folder many more.
socket=${TMPDIR:-/tmp}/nos-ec-$name-$port.sock
wait_s_max=60

missing() { echo "$name: $*" >&2; exit 3; }

# Install Debian packages, or say which ones are missing.
install_packages() {
    command -v apt-get >/dev/null || missing "needs the packages: $*; install them by your system's means"
    local as_root=
    if [ "$(id -u)" != 0 ]; then
        sudo -n true 2>/dev/null || missing "needs root or sudo to install the packages: $*"
        as_root=sudo
    fi
    $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "$@" >"$base/install.log" 2>&1 ||
        { $as_root apt-get update -q >>"$base/install.log" 2>&1 &&
            $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "$@" >>"$base/install.log" 2>&1; } ||
        missing "could not install $*; see $base/install.log"
}

# The pid of our server; fails when it does not run. A pid that now belongs to another program does not count.
running_pid() {
    local pid
    pid=$(cat "$pid_file" 2>/dev/null) || return 1
    tr '\0' '\n' <"/proc/$pid/cmdline" 2>/dev/null | grep -qxF -- "--datadir=$data" || return 1
    echo "$pid"
}

answers() { (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; }

start() {
    if running_pid >/dev/null; then echo "$name runs already"; url; return; fi
    mkdir -p "$base"
    need_server
    answers && { echo "$name: port $port is taken by another program; set NOS_EC_DEV_PORT" >&2; exit 1; }
    [ -e "$data/.complete" ] || { rm -rf "$data"; new_data_dir >"$base/init.log" 2>&1 || failed "$base/init.log"; touch "$data/.complete"; }
    echo "CREATE DATABASE IF NOT EXISTS nos_ec;" >"$base/init.sql"
    local arguments=()
    while IFS= read -r argument; do arguments+=("$argument"); done < <(server_command; common_options)
    setsid nohup "${arguments[@]}" >"$log" 2>&1 </dev/null &
    echo $! >"$pid_file"
    await_start $!
    url
}

common_options() {
    printf '%s\n' "--datadir=$data" "--port=$port" --bind-address=127.0.0.1 "--socket=$socket" "--pid-file=$data/own.pid" \
        "--init-file=$base/init.sql" --skip-log-bin --innodb-buffer-pool-size=128M
    [ "$(id -u)" != 0 ] || echo --user=root
    [ "${NOS_EC_DEV_FAST:-0}" = 0 ] || printf '%s\n' --innodb-flush-log-at-trx-commit=0 --innodb-doublewrite=0
}

await_start() {
    local waited
    for ((waited = 0; waited < wait_s_max * 5; waited++)); do
        answers && return
        kill -0 "$1" 2>/dev/null || failed "$log"
        sleep 0.2
    done
    stop
    failed "$log"
}

failed() { echo "$name did not start; the end of $1:" >&2; tail -n 20 "$1" >&2; exit 1; }

stop() {
    local pid waited
    pid=$(running_pid) || { echo "$name does not run"; return; }
    kill "$pid"
    for ((waited = 0; waited < wait_s_max * 5; waited++)); do
        running_pid >/dev/null || { rm -f "$pid_file"; echo "$name stopped"; return; }
        sleep 0.2
    done
    echo "$name: process $pid is still there after $wait_s_max s; see $log" >&2
    exit 1
}

status() {
    running_pid >/dev/null || { echo "$name does not run"; exit 3; }
    echo "$name runs as process $(running_pid)"
    url
}

url() { echo "mysql+pymysql://root@127.0.0.1:$port/nos_ec"; }

case "${1:-}" in
start | stop | status) "$1" ;;
*) echo "usage: $0 start|stop|status" >&2; exit 1 ;;
esac
