#!/usr/bin/env bash
# A Prometheus server for development and tests, on 127.0.0.1 only, with its own data folder; no system service.
# Debian's package would start one, so it is only unpacked. Programs that are installed already are used as they are.
# usage: deploy/dev/prometheus.sh start|stop|status|install|programs      (environment: see base.sh and server.sh)
# The last word of start and status is its URL. `programs` prints the paths of prometheus and promtool.
#
# Environment, besides that of base.sh and server.sh:
#   NOS_EC_DEV_PROMETHEUS_CONFIG  its configuration (default: deploy/prometheus/prometheus.yml)

name=prometheus
. "$(dirname "$0")/base.sh"
port=${NOS_EC_DEV_PORT:-19090}
data=$base/data
argument=--storage.tsdb.path=$data
configuration=${NOS_EC_DEV_PROMETHEUS_CONFIG:-$repository/deploy/prometheus/prometheus.yml}
program=$programs/prometheus-debian

need_program() {
    if command -v prometheus && command -v promtool; then return; fi >/dev/null
    if ! command -v apt-get || ! command -v dpkg-deb; then
        missing "needs prometheus and promtool; install them with your system's package manager"
    fi >/dev/null
    install_program "$program" .complete fetch
}

fetch() { unpack_package prometheus "$1"; } # FOLDER

program_of() { command -v "$1" || echo "$program/usr/bin/$1"; }

prepare() { :; }

make_data() { mkdir "$data"; }

server_command() {
    printf '%s\n' "$(program_of prometheus)" "--config.file=$configuration" "$argument" \
        "--web.listen-address=127.0.0.1:$port"
}

port_of_running() { tr '\0' '\n' <"/proc/$(running_pid)/cmdline" | sed -n 's/^--web.listen-address=127.0.0.1://p'; }

url() { echo "http://127.0.0.1:$(port_of_running)"; }

if [ "${1:-}" = programs ]; then
    need_program
    program_of prometheus
    program_of promtool
    exit
fi

. "$here/server.sh"
