#!/usr/bin/env bash
# Runs one command on a fresh machine: a minimal Debian with nothing but python3 and make. A machine in use can hide a
# missing install step, because something else has already installed the package. A fresh machine does not.
# usage: deploy/dev/fresh.sh COMMAND     a line for bash; it runs as root in a copy of the working tree
#
# The copy has the files of the working tree as they are, committed or not, except those that .gitignore names.
# Each run gets its own mount, process and IPC namespaces, and an empty layer (overlayfs) over the pristine system. Everything
# that the command installs, mounts or leaves running is gone when it ends, or when this script ends, even by SIGKILL. Files
# that a SIGKILL leaves are removed by the next run.
# The network is the host's, and so are the settings for package registries: the configuration of apt and pip,
# certificates, Maven's settings, and environment variables. Nothing else comes from the host.
#
# Environment, besides that of base.sh:
#   NOS_EC_FRESH_SUITE   Debian's suite (default bookworm). Its pristine system is created once: 270 MB in var/dev
#   NOS_EC_FRESH_MIRROR  Debian mirror (default: the one that apt uses)
#   NOS_EC_FRESH_KEEP    1: programs that a successful command installed in its var/dev are moved to var/dev here, if missing
# Exit status: that of the command; 3 when a fresh machine is impossible here; 1 when it cannot be set up.
# The ports of the development servers are set to free ones, so that they can run at the same time as those of the host.

name=fresh
. "$(dirname "$0")/base.sh"
suite=${NOS_EC_FRESH_SUITE:-bookworm}
system=$programs/fresh-$suite
packages=python3,make,ca-certificates # the last one is only for reaching registries over TLS
stop_wait_s_max=60
kept=(ceph-tentacle/.complete kafka-tools-4.0.0/.complete mysql-8.0.12/bin/mysqld)
layer=
layer_lock=
machine=

# --- the pristine system ------------------------------------------------------------------------------------------

need_system() {
    [ "$(id -u)" = 0 ] || missing "needs root, for its mounts and namespaces"
    command -v apt-get >/dev/null || missing "needs apt, to find a Debian mirror"
    [ ! -e "$system/.complete" ] || return 0
    command -v debootstrap >/dev/null || install_packages debootstrap
    mirror=${NOS_EC_FRESH_MIRROR:-$(debian_mirror)} || missing "apt knows no Debian mirror; set NOS_EC_FRESH_MIRROR"
    echo "$name: installing $suite in $system, once; this takes a minute" >&2
    install_program "$system" .complete make_system
}

make_system() { # FOLDER
    make_debian "$suite" "$1" "$mirror" --include="$packages" &&
        echo "deb $mirror $suite main" >"$1/etc/apt/sources.list" &&
        rm -f "$1"/var/cache/apt/archives/*.deb &&
        touch "$1/.complete"
}

remove() { rm -rf --one-file-system "$@"; }

# --- one run ------------------------------------------------------------------------------------------------------

# Every process of a machine holds the lock of its layer, which is free once the last process has ended.
make_layer() {
    local old
    mkdir -p "$base"
    take_lock
    for old in "$base"/run.*; do
        [ ! -d "$old" ] || ! flock --nonblock "$old/lock" true || remove "$old"
    done
    layer=$(mktemp -d "$base/run.XXXXXX")
    mkdir "$layer/upper" "$layer/work" "$layer/root" "$layer/project"
    exec {layer_lock}>"$layer/lock"
    flock "$layer_lock"
    exec 9>&-
}

release_layer() {
    [ -z "$layer_lock" ] || exec {layer_lock}>&-
    layer_lock=
}

copy_working_tree() {
    local excluded=$layer/excluded
    { echo .git; sed 's|/$||' "$repository/.gitignore"; } >"$excluded"
    tar -C "$repository" --exclude-from="$excluded" -c . | tar -C "$layer/project" -x --no-same-owner
}

# Copy the settings with which this machine reaches its package registries into the layer.
carry_settings() {
    local file upper=$layer/upper
    mkdir -p "$upper/etc/apt/apt.conf.d"
    apt-config dump Acquire | grep -v '^Acquire::IndexTargets' >"$upper/etc/apt/apt.conf.d/90host" || true
    for file in /etc/resolv.conf /etc/hosts /etc/apt/auth.conf /etc/apt/auth.conf.d /usr/local/share/ca-certificates \
        /etc/pip.conf "$HOME/.config/pip/pip.conf" "$HOME/.pip/pip.conf" "$HOME/.m2/settings.xml" \
        "$HOME/.m2/settings-security.xml"; do
        [ ! -e "$file" ] || carry "$file" "$upper${file/#"$HOME"/"/root"}"
    done
    for file in "${PIP_CONFIG_FILE:-}" "${PIP_CERT:-}" "${SSL_CERT_FILE:-}" "${REQUESTS_CA_BUNDLE:-}" "${CURL_CA_BUNDLE:-}"; do
        [ ! -f "$file" ] || [ -e "$system$file" ] || carry "$file" "$upper$file"
    done
}

carry() { # FROM TO
    mkdir -p "$(dirname "$2")"
    cp -RL "$1" "$2"
}

# NAME=VALUE lines of the variables with the settings for package registries.
carried_variables() {
    env | grep -E '^(PIP_(INDEX_URL|EXTRA_INDEX_URL|TRUSTED_HOST|CERT|PROXY|DEFAULT_TIMEOUT|RETRIES|CONFIG_FILE)|MAVEN_(OPTS|ARGS)|SSL_CERT_(FILE|DIR)|REQUESTS_CA_BUNDLE|CURL_CA_BUNDLE|(https?|ftp|all|no)_proxy|(HTTPS?|FTP|ALL|NO)_PROXY)=' || true
}

# Choose ports that are not in use, and that neither tests, development servers nor Linux's clients choose.
choose_ports() {
    local variable port taken=:
    ports=()
    for variable in NOS_EC_DEV_CEPH_PORT NOS_EC_DEV_KAFKA_PORT NOS_EC_DEV_DATABASE_PORT; do
        port=$((14000 + RANDOM % 5000))
        while [[ $taken = *:$port:* ]] || answers_on "$port"; do port=$((14000 + RANDOM % 5000)); done
        taken+=$port:
        ports+=("$variable=$port")
    done
}

# If this script dies, unshare ends. Then the machine's first process ends, and with it all others. A shell makes its
# background jobs ignore SIGINT, and the command would inherit that.
run_command() { # COMMAND
    local variables=()
    mapfile -t variables < <(carried_variables)
    setpriv --pdeathsig KILL env --default-signal=INT,QUIT unshare --mount --pid --ipc --fork --kill-child \
        bash "$here/fresh_machine.sh" "$system" "$layer" "$1" "${variables[@]}" "${ports[@]}" </dev/null 8>&- &
    machine=$!
    release_layer
    local status=0
    wait "$machine" || status=$?
    machine=
    [ "$status" != 0 ] || keep_programs
    return "$status"
}

# Move programs to var/dev, under the lock that an installation takes.
keep_programs() {
    [ "${NOS_EC_FRESH_KEEP:-0}" = 1 ] || return 0
    local proof folder
    for proof in "${kept[@]}"; do
        folder=${proof%%/*}
        [ -e "$layer/project/var/dev/$proof" ] && [ ! -e "$programs/$folder" ] || continue
        flock --nonblock "$programs/$folder.lock" mv -T "$layer/project/var/dev/$folder" "$programs/$folder" || true
    done
}

clean_up() {
    local status=$?
    trap - EXIT
    [ -z "$machine" ] || { kill -KILL "$machine" 2>/dev/null || true; wait "$machine" 2>/dev/null || true; }
    release_layer
    if [ -n "$layer" ]; then
        flock -w "$stop_wait_s_max" "$layer/lock" true || echo "$name: some process is still running" >&2
        remove "$layer"
    fi
    exit "$status"
}

[ $# = 1 ] || { echo "usage: $0 COMMAND" >&2; exit 1; }
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
need_system
make_layer
copy_working_tree
carry_settings
choose_ports
run_command "$1"
