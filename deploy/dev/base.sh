# The base of every script here: its folder, errors, packages, processes by pid. Sourced; `name` must be set before.
#
# Environment of all scripts:
#   NOS_EC_DEV_DIR   folder for data, logs and pids (default: var/dev in the repository, ignored by git)
# Exit status: 0 done; 1 failed; 3 something is missing and cannot be installed (status: 3 means not running).
# Programs that are not packages are installed in var/dev, whatever NOS_EC_DEV_DIR is, so that new data needs no new
# download.

set -eu
export LC_ALL=C
PATH=$PATH:/usr/sbin:/sbin # where Debian puts ldconfig, debootstrap and servers; not in a user's PATH
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
repository=$(cd "$here/../.." && pwd)
programs=$repository/var/dev
mkdir -p "${NOS_EC_DEV_DIR:-$programs}"
base=$(cd "${NOS_EC_DEV_DIR:-$programs}" && pwd -P)/$name

missing() { echo "$name: $*" >&2; exit 3; }

failed() { # MESSAGE [LOG]
    echo "$name: $1" >&2
    [ -z "${2:-}" ] || { echo "the end of $2:" >&2; tail -n 20 "$2" >&2; }
    exit 1
}

# One start or stop at a time. Daemons are started with 9>&-; otherwise they would hold the lock until they end.
take_lock() {
    exec 9>"$base/lock"
    flock -w 120 9 || failed "another start or stop is still in progress"
}

# --- programs -----------------------------------------------------------------------------------------------------

# Install Debian packages, or report which ones are missing. Scripts that run at the same time take turns.
install_packages() {
    command -v apt-get >/dev/null || missing "needs the packages: $*; install them with your system's package manager"
    local as_root=() log=$base/install.log
    if [ "$(id -u)" != 0 ]; then
        sudo -n true 2>/dev/null || missing "needs root or sudo to install the packages: $*"
        as_root=(sudo -n)
    fi
    local install=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 install -y -q
        --no-install-recommends "$@")
    mkdir -p "$base" "$programs"
    (
        flock -w 900 8
        "${install[@]}" || { "${as_root[@]}" apt-get update -q && "${install[@]}"; }
    ) 8>"$programs/install.lock" >"$log" 2>&1 </dev/null || missing "could not install $*; see $log"
}

# Fill a folder of programs, once. A function fills a temporary folder next to it, which is renamed when it is complete,
# so that an incomplete one is never used. If several scripts need the same folder at once, they wait for the first.
install_program() { # FOLDER PROOF FUNCTION    PROOF: a path in the folder that the function creates last
    local folder=$1 proof=$2 part
    [ ! -e "$folder/$proof" ] || return 0
    mkdir -p "$base" "$(dirname "$folder")"
    exec 8>"$folder.lock"
    flock -w 900 8 || failed "another installation of $folder is still in progress"
    if [ ! -e "$folder/$proof" ]; then
        part=$(mktemp -d "$folder.XXXXXX")
        chmod 755 "$part"
        "$3" "$part" >"$base/fetch.log" 2>&1 </dev/null ||
            { rm -rf --one-file-system "$part"; missing "could not install $folder; see $base/fetch.log"; }
        mv -T "$part" "$folder" 2>/dev/null || {
            rm -rf --one-file-system "$part"
            failed "$folder exists, but holds no complete installation; remove it"
        }
    fi
    exec 8>&-
}

# Unpack a Debian package whose installation would start a service. Only `apt-get update`, if it is needed, needs root.
unpack_package() { # PACKAGE FOLDER    leaves a file .complete
    (
        cd "$2"
        flock -w 900 7
        download_package "$1" || { as_root apt-get update -q && download_package "$1"; }
    ) 7>"$programs/install.lock" &&
        dpkg-deb --extract "$2/$1"_*.deb "$2" &&
        rm "$2/$1"_*.deb &&
        touch "$2/.complete"
}

download_package() { apt-get -o APT::Sandbox::User=root download -q "$1"; }

as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@"; fi; }

# Maven's cache is not safe for two processes at once, so the scripts take turns.
run_maven() { # ARGUMENT...
    (
        flock -w 600 6 &&
            mvn -q -B "$@"
    ) 6>"$programs/maven.lock"
}

# --- Debian systems -----------------------------------------------------------------------------------------------

# The mirror that apt already uses.
debian_mirror() { apt-get indextargets --format '$(REPO_URI)' 2>/dev/null | grep -m1 -E '/debian/?$'; }

# A minimal system in a folder. Unpacked files are not flushed to disk one by one, because an incomplete system is
# thrown away. Its packages must not start services.
make_debian() { # SUITE FOLDER MIRROR OPTION...
    local suite=$1 folder=$2 mirror=$3 script=/usr/share/debootstrap/scripts/$1
    shift 3
    [ -e "$script" ] || script=/usr/share/debootstrap/scripts/sid
    mkdir -p "$folder/etc/dpkg/dpkg.cfg.d" &&
        echo force-unsafe-io >"$folder/etc/dpkg/dpkg.cfg.d/unsafe-io" &&
        debootstrap --variant=minbase "$@" "$suite" "$folder" "$mirror" "$script" &&
        printf '#!/bin/sh\nexit 101\n' >"$folder/usr/sbin/policy-rc.d" &&
        chmod +x "$folder/usr/sbin/policy-rc.d"
}

# --- processes and ports ------------------------------------------------------------------------------------------

# The pid recorded in a file, if that process is running and has this argument. A pid that now belongs to another
# program does not count.
process_of() { # FILE ARGUMENT
    local pid
    pid=$(cat "$1" 2>/dev/null) || return 1
    { tr '\0' '\n' <"/proc/$pid/cmdline" | grep -qxF -- "$2"; } 2>/dev/null || return 1
    echo "$pid"
}

# A stopped process (SIGSTOP) handles TERM only after CONT.
signal_process() { # PID SIGNAL
    kill "-$2" "$1" 2>/dev/null || true
    kill -CONT "$1" 2>/dev/null || true
}

answers_on() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }

need_free_port() { ! answers_on "$1" || failed "port $1 is in use by another program; choose another port"; }

# --- cells --------------------------------------------------------------------------------------------------------

# Checked here, because `cell_names` runs in subshells, which cannot end the script.
[[ ${NOS_EC_DEV_CELLS:-1} =~ ^([1-9]|1[0-9]|2[0-6])$ ]] ||
    failed "NOS_EC_DEV_CELLS is $NOS_EC_DEV_CELLS; it must be 1 to 26, or unset for a store without cells"

# The names of the cells of the stack, a line each: a, b, ... Prints nothing for a store that is not divided.
cell_names() {
    [ -z "${NOS_EC_DEV_CELLS:-}" ] || echo abcdefghijklmnopqrstuvwxyz | cut -c "1-$NOS_EC_DEV_CELLS" | grep -o .
}
