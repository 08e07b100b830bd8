# Installs Ceph's programs and runs them. Sourced by ceph.sh.
#
# Tentacle runs in a chroot. Each program has its own mount namespace, in which the cluster's folder has the same path
# inside and outside of the chroot. The mounts are gone when the program ends, however it ends, so nothing stays mounted
# below the repository.

packages=(ceph-mon ceph-mgr ceph-osd ceph-common)

need_programs() {
    case $flavour in
    tentacle)
        [ "$(id -u)" = 0 ] || missing "Tentacle runs in a chroot, which needs root; or set NOS_EC_DEV_CEPH=system"
        [ -e "$chroot_dir/.complete" ] || install_chroot
        ;;
    system)
        local program
        for program in ceph-mon ceph-mgr ceph-osd ceph monmaptool; do
            command -v "$program" >/dev/null || { install_packages "${packages[@]}"; break; }
        done
        ;;
    *) failed "NOS_EC_DEV_CEPH is $flavour; it must be tentacle or system" ;;
    esac
}

# radosgw is only for `nos-ec bench s3`, so it is installed when it is first run.
need_radosgw() {
    if [ "$flavour" = system ]; then
        command -v radosgw >/dev/null || install_packages radosgw
    elif [ ! -e "$chroot_dir/usr/bin/radosgw" ]; then
        mkdir -p "$base"
        (
            flock -w 900 8
            [ -e "$chroot_dir/usr/bin/radosgw" ] || in_chroot "$chroot_dir" env DEBIAN_FRONTEND=noninteractive \
                apt-get install -y -q --no-install-recommends radosgw
        ) 8>"$chroot_dir.lock" >"$base/radosgw.log" 2>&1 </dev/null || missing "could not install radosgw; see $base/radosgw.log"
    fi
}

# nos_ec itself loads the Python binding of the distribution that it runs on.
need_client() {
    local found=(/usr/lib/python3/dist-packages/rados.*.so /usr/lib*/python3.*/site-packages/rados.*.so)
    local file
    for file in "${found[@]}"; do [ ! -e "$file" ] || return 0; done
    install_packages python3-rados
}

# Debian's forky suite, from the mirror that apt already uses: downloads about 170 MB, needs 750 MB on disk, and takes
# one or two minutes.
install_chroot() {
    command -v debootstrap >/dev/null || install_packages debootstrap
    mirror=$(debian_mirror) || missing "apt knows no Debian mirror to take Tentacle from; set NOS_EC_DEV_CEPH=system or NOS_EC_DEV_CEPH_CONF"
    echo "$name: installing Tentacle in $chroot_dir, once; this takes one or two minutes" >&2
    install_program "$chroot_dir" .complete bootstrap
}

bootstrap() { # FOLDER
    make_debian forky "$1" "$mirror" &&
        fill_chroot "$1" &&
        touch "$1/.complete"
}

fill_chroot() {
    # On a mirror that lags, the Release file of a testing suite can look expired. Its signature is still checked.
    in_chroot "$1" apt-get -o Acquire::Check-Valid-Until=false update -q &&
        in_chroot "$1" env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${packages[@]}" &&
        rm -rf "$1"/var/cache/apt/archives/*.deb
}

# Fill the array `wrapped` with the command line that runs a command in a chroot with /proc and the cluster's folder.
# Every step of it is an exec, so the first process keeps its pid and becomes the command itself.
wrap_in_chroot() { # ROOT COMMAND...
    local root=$1
    shift
    mkdir -p "$root$base"
    wrapped=(unshare --mount -- bash -c '
        set -e
        mount -t proc proc "$1/proc"
        mount --bind "$2" "$1$2"
        root=$1
        shift 2
        cd /
        exec env PATH=/usr/sbin:/usr/bin:/sbin:/bin chroot "$root" "$@"' in_chroot "$root" "$base" "$@")
}

in_chroot() {
    local wrapped
    wrap_in_chroot "$@"
    "${wrapped[@]}"
}

# Fill `wrapped` with the command line that runs one of Ceph's programs where it is installed.
wrap() {
    if [ "$flavour" = tentacle ]; then wrap_in_chroot "$chroot_dir" "$@"; else wrapped=("$@"); fi
}

run() {
    local wrapped
    wrap "$@"
    command "${wrapped[@]}"
}

as_admin() { # PROGRAM ARGUMENT...
    local program=$1
    shift
    run "$program" -c "$conf" --name client.admin --keyring "$admin_keyring" "$@"
}

# Each call of `ceph` takes a third of a second, so many commands are sent as one batch through standard input.
ceph() { as_admin ceph --connect-timeout 30 "$@"; }
