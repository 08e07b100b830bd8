#!/usr/bin/env bash
# A MariaDB server for development and tests, on 127.0.0.1 only, with its own data folder; no system service.
# usage: deploy/dev/mariadb.sh start|stop|status|install      (environment: see base.sh, server.sh and sql_server.sh)
# The last word of start and status is the URL of its database; its user, root, has no password.

name=mariadb
. "$(dirname "$0")/base.sh"
galera=/usr/lib/galera/libgalera_smm.so # a --wsrep-provider

# These packages contain only programs, so installing them starts nothing. mariadb-install-db calls my_print_defaults.
# The commands of docs/RUNBOOKS.md use the other programs of the client's package.
need_program() {
    local program
    for program in mariadbd mariadb-install-db my_print_defaults mariadb mariadb-binlog mariadb-dump; do
        command -v "$program" >/dev/null || { install_packages mariadb-server-core mariadb-client; break; }
    done
    case ${NOS_EC_DEV_DATABASE_OPTIONS:-} in
    *"$galera"*) [ -e "$galera" ] || install_packages galera-4 ;;
    esac
}

make_data() {
    local as=()
    [ "$(id -u)" != 0 ] || as=(--user=root)
    mariadb-install-db --no-defaults "${as[@]}" --datadir="$data" --tmpdir="$temporary" --skip-test-db \
        --auth-root-authentication-method=normal
}

program_command() { printf '%s\n' "$(command -v mariadbd)" --no-defaults; }

. "$here/sql_server.sh"
