#!/usr/bin/env bash
# A MariaDB server for development and tests, on 127.0.0.1 only, with its own data folder; no system service.
# usage: deploy/dev/mariadb.sh start|stop|status      (environment: see sql_server.sh)

name=mariadb
port=13306

# The core package holds the server program alone: nothing is started by installing it.
need_server() { PATH=$PATH:/usr/sbin command -v mariadbd >/dev/null || install_packages mariadb-server-core; }

new_data_dir() {
    local as=()
    [ "$(id -u)" != 0 ] || as=(--user=root)
    mariadb-install-db --no-defaults "${as[@]}" --datadir="$data" --auth-root-authentication-method=normal --skip-test-db
}

server_command() { printf '%s\n' "$(PATH=$PATH:/usr/sbin command -v mariadbd)" --no-defaults; }

. "$(dirname "$0")/sql_server.sh"
