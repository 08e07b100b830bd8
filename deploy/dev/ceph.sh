#!/usr/bin/env bash
# A Ceph cluster for development and tests, on 127.0.0.1 only: 1 monitor, 1 manager, 12 OSDs (BlueStore), an 8+3
# erasure-coded pool, a 3-replica landing pool, and a key of least privilege for each kind of client.
# It uses no system service and finds each daemon by its pid. docs/CEPH.md explains what is created and why.
# usage: deploy/dev/ceph.sh start|stop|status|install        a second start restarts daemons that died
#        deploy/dev/ceph.sh run PROGRAM [ARGUMENT...]         run one of Ceph's programs, such as ceph, as client.admin;
#                                                             radosgw is installed when it is first run
#        deploy/dev/ceph.sh new-osd N                         OSD N on an empty disk: one that was destroyed, or one more
#
# The last word that `start` and `status` print is the path of ceph.conf. The keyrings are in the same folder.
#
# Environment, besides that of base.sh:
#   NOS_EC_DEV_PORT          port of the monitor (default 13320); the other daemons use free ports from 6800 up
#   NOS_EC_DEV_CEPH          tentacle (default): Ceph 20.2 of Debian's forky suite, in a chroot; needs root
#                            system: the distribution's own Ceph (Debian 12: Pacific 16.2)
#   NOS_EC_DEV_CEPH_PROGRAMS folder of the chroot (default: var/dev/ceph-tentacle in the repository)
#   NOS_EC_DEV_CEPH_OSDS     number of OSDs, 11 or more (default 12)
#   NOS_EC_DEV_CEPH_OSD_GIB  size of a new OSD (default 8). Its file is sparse, but gradually grows to this size, because
#                            deleted data is not returned to the file system
#   NOS_EC_DEV_CEPH_CONF     ceph.conf of an existing cluster. `start` then only creates the pools and keys that the
#                            cluster lacks; no daemon is started or stopped
#   NOS_EC_DEV_CEPH_KEYRING  keyring of client.admin for that cluster

name=ceph
. "$(dirname "$0")/base.sh"
unset CEPH_ARGS CEPH_CONF CEPH_KEYRING
port=${NOS_EC_DEV_PORT:-13320}
flavour=${NOS_EC_DEV_CEPH:-tentacle}
osd_count=${NOS_EC_DEV_CEPH_OSDS:-12}
osd_gib=${NOS_EC_DEV_CEPH_OSD_GIB:-8}
chroot_dir=${NOS_EC_DEV_CEPH_PROGRAMS:-$programs/ceph-tentacle}
own_conf=$base/ceph.conf
conf=$own_conf
admin_keyring=$base/admin.keyring
wait_s_max=120
stop_wait_s_max=40
making=() # pids of the processes that create the OSDs

exists_elsewhere() { [ -n "${NOS_EC_DEV_CEPH_CONF:-}" ]; }

# Copy ceph.conf and the keyring, so that the programs find them in their chroot.
adopt() {
    [ -r "$NOS_EC_DEV_CEPH_CONF" ] || failed "NOS_EC_DEV_CEPH_CONF: $NOS_EC_DEV_CEPH_CONF cannot be read"
    [ -r "${NOS_EC_DEV_CEPH_KEYRING:-}" ] || failed "NOS_EC_DEV_CEPH_KEYRING must name a readable keyring of client.admin"
    [ ! -e "$base/mon" ] || failed "$base holds a cluster that this script created; set NOS_EC_DEV_DIR to another folder"
    (umask 077 && cp "$NOS_EC_DEV_CEPH_CONF" "$conf" && cp "$NOS_EC_DEV_CEPH_KEYRING" "$admin_keyring")
}

. "$here/ceph_programs.sh"
. "$here/ceph_daemons.sh"
. "$here/ceph_pools.sh"

start() {
    mkdir -p "$base/log" "$base/run" "$base/tmp"
    take_lock
    need_client
    need_programs
    if exists_elsewhere; then
        adopt
    else
        trap stop_after_failure EXIT
        trap 'exit 143' INT TERM
        start_daemons
    fi
    make_pools
    make_client_keys
    exists_elsewhere || await "all placement groups to be active and clean" "$wait_s_max" groups_are_clean
    echo "$name is running: $(described)"
    echo "$conf"
}

# A failed start leaves nothing running.
stop_after_failure() {
    local status=$?
    trap - EXIT
    if [ "$status" != 0 ]; then
        [ ${#making[@]} = 0 ] || kill -KILL "${making[@]}" 2>/dev/null || true
        stop_daemons >/dev/null
    fi
    exit "$status"
}

stop() {
    ! exists_elsewhere || { echo "$name: this script did not start the cluster of $conf, and does not stop it"; return; }
    [ -e "$base/lock" ] || { echo "$name is not running"; return; }
    take_lock
    stop_daemons
}

status() {
    if exists_elsewhere; then
        need_programs
        adopt
    else
        [ -n "$(running_daemons)" ] || { echo "$name is not running"; exit 3; }
        know_osd_count
        need_all_daemons
        need_programs
        osds_are_up || failed "not all OSDs are up: $(cluster_version), $(osd_counts); see $base/log"
    fi
    echo "$name is running: $(described)"
    echo "$conf"
}

new_osd() { # N
    ! exists_elsewhere || failed "the cluster of $conf is not one that this script created"
    need_programs
    take_lock
    know_osd_count
    [[ $1 =~ ^[0-9]+$ ]] && [ "$1" -le "$osd_count" ] || failed "$1 must be an OSD, or the next number, $osd_count"
    make_osd "$1"
    echo "osd.$1 is running"
}

install() {
    need_client
    need_programs
    echo "$name is installed"
}

case "${1:-} $#" in
start\ 1 | stop\ 1 | status\ 1 | install\ 1) "$1" ;;
run\ [2-9] | run\ [1-9][0-9])
    shift
    need_programs
    case $1 in radosgw*) need_radosgw ;; esac
    as_admin "$@"
    ;;
new-osd\ 2) new_osd "$2" ;;
*) echo "usage: $0 start|stop|status|install | run PROGRAM [ARGUMENT...] | new-osd N" >&2; exit 1 ;;
esac
