# The common part of mariadb.sh and mysql.sh, which source it. They set `name`, and the functions need_program,
# make_data (see server.sh) and program_command (prints one argument per line).
# Both use the same port by default: a store needs only one of them, and the same configuration fits either.
#
# Environment, besides that of base.sh and server.sh:
#   NOS_EC_DEV_FAST  1: commits do not wait for the disk. For test runs only: a crash of the machine loses data
#   NOS_EC_DEV_CELLS  number of databases for cells, 1 to 26, besides nos_ec: nos_ec_a, nos_ec_b, ... (default: none)
#   NOS_EC_DEV_DATABASE_OPTIONS  more options of the server, separated by spaces, such as: --log-bin --server-id=1

port=${NOS_EC_DEV_PORT:-13306}
data=$base/data
# A separate folder: at its start, a server removes temporary tables there, even those that another server is using.
temporary=$base/tmp
argument=--datadir=$data
# The path of a socket may have only about 100 bytes, and $base may be longer.
socket=${TMPDIR:-/tmp}/nos-ec-$name-$port.sock

prepare() {
    mkdir -p "$temporary"
    local cell
    for cell in '' $(cell_names); do
        echo "CREATE DATABASE IF NOT EXISTS nos_ec${cell:+_$cell};"
    done >"$base/init.sql"
}

server_command() {
    program_command
    printf '%s\n' "$argument" "--port=$port" --bind-address=127.0.0.1 "--socket=$socket" "--pid-file=$data/own.pid" \
        "--tmpdir=$temporary" "--init-file=$base/init.sql" --skip-log-bin --innodb-buffer-pool-size=128M \
        --innodb-io-capacity=2000
    [ "$(id -u)" != 0 ] || echo --user=root
    [ "${NOS_EC_DEV_FAST:-0}" = 0 ] || printf '%s\n' --innodb-flush-log-at-trx-commit=0 --innodb-doublewrite=0
    local options=()
    read -ra options <<<"${NOS_EC_DEV_DATABASE_OPTIONS:-}"
    [ ${#options[@]} = 0 ] || printf '%s\n' "${options[@]}"
}

port_of_running() { tr '\0' '\n' <"/proc/$(running_pid)/cmdline" | sed -n 's/^--port=//p'; }

url() { echo "mysql+pymysql://root@127.0.0.1:$(port_of_running)/nos_ec"; }

. "$here/server.sh"
