# Creates (once), starts and stops the daemons of the development cluster. Sourced by ceph.sh.

# By default, Linux has 65,536 slots for asynchronous I/O (/proc/sys/fs/aio-max-nr) for all processes together. An OSD
# takes twice this number. With the default of 1,024, a third cluster on a machine could not start.
aio_depth=256

start_daemons() {
    know_osd_count
    [ "$osd_gib" -ge 2 ] 2>/dev/null || failed "NOS_EC_DEV_CEPH_OSD_GIB is $osd_gib; it must be a number, 2 or more"
    [ "$osd_count" -ge 11 ] 2>/dev/null || failed "NOS_EC_DEV_CEPH_OSDS is $osd_count; 8+3 needs 11 or more"
    # The path of a socket may have at most 107 bytes. Without a socket, daemons accept no commands.
    [ ${#base} -le 85 ] || failed "the path $base is too long for sockets; set NOS_EC_DEV_DIR to a shorter one"
    [ ! -e "$base/flavour" ] || [ "$(cat "$base/flavour")" = "$flavour" ] ||
        failed "$base was created by $(cat "$base/flavour"), not $flavour: set NOS_EC_DEV_CEPH to it, or remove $base"
    # A cluster whose creation was interrupted is recreated, because its monitor may know OSDs that were never created.
    [ -e "$base/osds.complete" ] || { stop_daemons >/dev/null; make_monitor; }
    launch mon ceph-mon -f -i a
    launch mgr ceph-mgr -f -i x
    await "the monitor to answer" "$wait_s_max" answers
    [ -e "$base/osds.complete" ] || { set_options; make_osds; }
    local osd
    for ((osd = 0; osd < osd_count; osd++)); do launch "osd.$osd" ceph-osd -f -i "$osd"; done
    await "$osd_count OSDs to be up" "$wait_s_max" osds_are_up
}

# A cluster keeps the number of OSDs that it was created with.
know_osd_count() { [ ! -e "$base/osd_count" ] || osd_count=$(cat "$base/osd_count"); }

# Start a daemon unless it is running. It does not fork (-f), so the pid of the started process is the daemon's.
launch() {
    local daemon=$1 wrapped
    shift
    ! running_pid "$daemon" >/dev/null || return 0
    wrap "$@" -c "$own_conf"
    setsid nohup "${wrapped[@]}" >>"$base/log/$daemon.out" 2>&1 </dev/null 9>&- &
    echo $! >"$base/run/$daemon.pid"
}

running_pid() { process_of "$base/run/$1.pid" "$own_conf"; }

running_daemons() {
    local file daemon
    for file in "$base"/run/*.pid; do
        daemon=$(basename "$file" .pid)
        ! running_pid "$daemon" >/dev/null || echo "$daemon"
    done
}

# Send TERM to all daemons at once, then KILL to the remaining ones. BlueStore's journal makes both safe.
stop_daemons() {
    local daemons daemon waited
    daemons=$(running_daemons)
    [ -n "$daemons" ] || { echo "$name is not running"; return; }
    for daemon in $daemons; do signal "$daemon" TERM; done
    for ((waited = 0; waited < stop_wait_s_max * 5; waited++)); do
        [ -n "$(running_daemons)" ] || break
        sleep 0.2
    done
    for daemon in $(running_daemons); do signal "$daemon" KILL; done
    sleep 0.2
    [ -z "$(running_daemons)" ] || failed "still running: $(running_daemons | tr '\n' ' ')"
    rm -f "$base"/run/*.pid
    echo "$name stopped"
}

signal() {
    local pid
    ! pid=$(running_pid "$1") || signal_process "$pid" "$2"
}

# Fails with the names of the daemons that are not running.
need_all_daemons() {
    local daemon lacking=()
    for daemon in mon mgr $(seq -f 'osd.%g' 0 $((osd_count - 1))); do
        running_pid "$daemon" >/dev/null || lacking+=("$daemon")
    done
    [ ${#lacking[@]} = 0 ] || failed "not running, of $((osd_count + 2)) daemons: ${lacking[*]}; run start again"
}

# --- creating -----------------------------------------------------------------------------------------------------

# An `aes` key: type 1, time of creation, 16 random bytes. Tentacle's own tools would create aes256k keys, which older
# client libraries cannot read.
new_key() {
    {
        printf '\001\000'
        printf '%08x' "$(date +%s)" | sed -E 's/(..)(..)(..)(..)/\\x\4\\x\3\\x\2\\x\1/' | xargs -0 printf
        printf '\000\000\000\000\020\000'
        head -c 16 /dev/urandom
    } | base64 -w 0
}

keyring_entry() { # NAME CAP...    a CAP is such as: mon 'allow r'
    printf '[%s]\n\tkey = %s\n' "$1" "$(new_key)"
    shift
    while [ $# -gt 0 ]; do printf '\tcaps %s = "%s"\n' "$1" "$2"; shift 2; done
}

make_monitor() {
    rm -rf "$base/mon" "$base/mgr" "$base"/osd.* "$base"/client.*.keyring "$base/osds.complete" "$base/pools.complete"
    need_free_port "$port"
    mkdir -p "$base/mon" "$base/mgr"
    local fsid ciphers=()
    fsid=$(cat /proc/sys/kernel/random/uuid)
    echo "$osd_count" >"$base/osd_count"
    echo "$flavour" >"$base/flavour"
    write_conf "$fsid"
    (umask 077 && make_keyrings)
    # The client library of Debian 12 knows only the cipher `aes`.
    ! run monmaptool --help 2>&1 | grep -q -- --auth-allowed-ciphers ||
        ciphers=(--auth-allowed-ciphers "aes,aes256k" --auth-service-cipher aes --auth-preferred-cipher aes)
    {
        run monmaptool --create --clobber --fsid "$fsid" --addv a "[v2:127.0.0.1:$port]" "${ciphers[@]}" "$base/tmp/monmap" &&
            run ceph-mon --mkfs -c "$own_conf" -i a --monmap "$base/tmp/monmap" --keyring "$base/tmp/first.keyring"
    } >"$base/log/mon.make" 2>&1 || failed "the monitor cannot be created" "$base/log/mon.make"
    cp "$base/tmp/mon.keyring" "$base/mon/keyring" # not before: a folder that is not empty counts as created
}

# Settings that can be changed at run time, so they are not in ceph.conf.
#
# By default, the monitor collects changes of its maps for a second before it publishes them. Here there are never many
# at once. Tests that measure set the default again.
#
# By default, the manager's balancer moves groups between OSDs about a minute after the start. Groups that move are
# inactive for a moment, in the middle of a test that expects no fault. The monitor does not know the manager's module
# yet, so the setting must be forced.
set_options() {
    {
        ceph config set mon paxos_propose_interval 0.1 &&
            ceph config set mgr mgr/balancer/active false --force
    } >"$base/log/mon.options" 2>&1 || failed "the monitor does not accept a setting" "$base/log/mon.options"
}

make_keyrings() {
    keyring_entry client.admin mon 'allow *' osd 'allow *' mgr 'allow *' >"$base/admin.keyring"
    keyring_entry mgr.x mon 'allow profile mgr' osd 'allow *' >"$base/mgr/keyring"
    keyring_entry mon. mon 'allow *' >"$base/tmp/mon.keyring"
    cat "$base/tmp/mon.keyring" "$base/mgr/keyring" "$base/admin.keyring" >"$base/tmp/first.keyring"
}

make_osds() {
    local osd id ids=() commands="" wrapped pid
    : >"$base/tmp/osds.keyring"
    for ((osd = 0; osd < osd_count; osd++)); do
        rm -rf "$base/osd.$osd"
        mkdir -p "$base/osd.$osd"
        id=$(cat /proc/sys/kernel/random/uuid)
        ids+=("$id")
        (umask 077 && keyring_entry "osd.$osd" mon 'allow profile osd' mgr 'allow profile osd' osd 'allow *' >"$base/osd.$osd/keyring")
        cat "$base/osd.$osd/keyring" >>"$base/tmp/osds.keyring"
        commands+="osd new $id $osd"$'\n'
    done
    printf '%s' "$commands" | ceph >"$base/log/osd.new" 2>&1 || failed "OSDs cannot be registered" "$base/log/osd.new"
    ceph auth import -i "$base/tmp/osds.keyring" >>"$base/log/osd.new" 2>&1 || failed "OSDs cannot be registered" "$base/log/osd.new"
    for ((osd = 0; osd < osd_count; osd++)); do
        wrap ceph-osd --mkfs -f -c "$own_conf" -i "$osd" --osd-uuid "${ids[osd]}"
        "${wrapped[@]}" >"$base/log/osd.$osd.make" 2>&1 9>&- &
        making+=($!)
    done
    osd=0
    for pid in "${making[@]}"; do
        wait "$pid" || failed "osd.$osd cannot be created" "$base/log/osd.$osd.make"
        osd=$((osd + 1))
    done
    making=()
    touch "$base/osds.complete"
}

# One OSD on an empty disk, in the running cluster.
make_osd() { # N
    local osd=$1 id wrapped
    ! running_pid "osd.$osd" >/dev/null || failed "osd.$osd is running"
    rm -rf "$base/osd.$osd"
    mkdir -p "$base/osd.$osd"
    id=$(cat /proc/sys/kernel/random/uuid)
    (umask 077 && keyring_entry "osd.$osd" mon 'allow profile osd' mgr 'allow profile osd' osd 'allow *' >"$base/osd.$osd/keyring")
    cp "$base/osd.$osd/keyring" "$base/tmp/osds.keyring"
    {
        ceph osd new "$id" "$osd" && ceph auth import -i "$base/tmp/osds.keyring" &&
            run ceph-osd --mkfs -f -c "$own_conf" -i "$osd" --osd-uuid "$id"
    } >"$base/log/osd.$osd.make" 2>&1 || failed "osd.$osd cannot be created" "$base/log/osd.$osd.make"
    [ "$osd" -lt "$osd_count" ] || { osd_count=$((osd + 1)); echo "$osd_count" >"$base/osd_count"; }
    launch "osd.$osd" ceph-osd -f -i "$osd"
    await "osd.$osd to be up" "$wait_s_max" osd_is_up "$osd"
}

# Settings differ from Ceph's defaults so that 12 OSDs fit on one small machine, and so that tests need not wait for
# grace periods. None of them weakens durability: BlueStore syncs as always.
write_conf() {
    cat >"$own_conf" <<CONF
[global]
fsid = $1
mon_host = [v2:127.0.0.1:$port]
auth_cluster_required = cephx
auth_service_required = cephx
auth_client_required = cephx
public_addr = 127.0.0.1
cluster_addr = 127.0.0.1
ms_bind_msgr1 = false
ms_bind_msgr2 = true
admin_socket = $base/run/\$name.asok
log_file = $base/log/\$name.log
mon_cluster_log_file = $base/log/cluster.log
crash_dir = $base/log
run_dir = $base/run
osd_crush_chooseleaf_type = 0
osd_pool_default_pg_autoscale_mode = off
mon_max_pg_per_osd = 500
osd_heartbeat_interval = 3
osd_heartbeat_grace = 6
[client]
log_file =
admin_socket =
[mon]
mon_data = $base/mon
mon_data_avail_crit = 0
mon_data_avail_warn = 1
mon_osd_reporter_subtree_level = osd
mon_osd_min_down_reporters = 2
mon_osd_down_out_interval = 86400
mon_osd_adjust_heartbeat_grace = false
mon_allow_pool_delete = true
mon_memory_autotune = false
auth_allow_insecure_global_id_reclaim = false
[mgr]
mgr_data = $base/mgr
mgr_initial_modules =
mgr_tick_period = 1
mgr_stats_period = 1
[osd]
osd_data = $base/osd.\$id
keyring = $base/osd.\$id/keyring
osd_objectstore = bluestore
bluestore_block_create = true
bluestore_block_size = $((osd_gib << 30))
bluestore_block_db_create = false
bluestore_block_wal_create = false
bluestore_cache_autotune = false
bluestore_cache_size = $((32 << 20))
bluestore_cache_trim_interval = 0.5
bluestore_fsck_on_mount = false
bdev_aio_max_queue_depth = $aio_depth
osd_op_num_shards = 2
osd_op_num_threads_per_shard = 1
osd_mclock_skip_benchmark = true
osd_mon_shutdown_timeout = 1
osd_recovery_sleep = 0
osd_recovery_sleep_hdd = 0
osd_max_backfills = 8
osd_max_pg_log_entries = 500
osd_min_pg_log_entries = 100
CONF
    [ "$flavour" != tentacle ] || return 0
    # Pacific would otherwise scale the memory of each OSD to that of the machine.
    echo "osd_memory_target = $((896 << 20))" >>"$own_conf"
}

# --- waiting ------------------------------------------------------------------------------------------------------

await() { # WHAT SECONDS COMMAND...
    local what=$1 deadline=$((SECONDS + $2)) file
    shift 2
    until "$@" 2>/dev/null; do
        for file in "$base"/run/*.pid; do
            running_pid "$(basename "$file" .pid)" >/dev/null || failed "$(basename "$file" .pid) died" "$base/log/$(basename "$file" .pid).out"
        done
        [ "$SECONDS" -lt "$deadline" ] || failed "timed out waiting for $what" "$base/log/mon.a.log"
        sleep 0.3
    done
}

answers() { ceph --connect-timeout 5 fsid >/dev/null; }

osds_are_up() { ceph osd stat -f json | grep -q "\"num_up_osds\":[ ]*${osd_count}[,}]"; }

osd_is_up() { ceph osd dump | grep -q "^osd\.$1 up "; }

groups_are_clean() {
    local report
    report=$(ceph pg stat -f json) || return 1
    # All groups must be active+clean (scrubbing does not count as another state).
    printf '%s' "$report" | grep -q '"name":[ ]*"active+clean' &&
        ! printf '%s' "$report" | grep -o '"name":[ ]*"[^"]*"' | grep -v '"active+clean' | grep -q .
}

described() { echo "$(cluster_version), $(osd_counts), $(ceph health | head -n 1)"; }

cluster_version() { run ceph-osd --version | cut -d ' ' -f 3,5; }

osd_counts() { ceph osd stat | tr '\n' ' ' | cut -d ';' -f 1,2 | cut -d '(' -f 1; }
