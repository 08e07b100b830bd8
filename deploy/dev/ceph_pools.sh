# Creates pools and client keys, in this script's cluster or in an existing one. Sourced by ceph.sh.
# Existing pools and keys are left as they are. nos_ec checks the pools when it opens them, and reports any
# that do not fit.

pool_blocks=nos-ec-blocks
pool_landing=nos-ec-landing
pool_groups=32
profile=nos-ec-8-3

make_pools() {
    [ ! -e "$base/pools.complete" ] || exists_elsewhere || return 0
    local pools log=$base/log/pools.out
    pools=$(ceph osd pool ls 2>"$log") || failed "the cluster of $conf does not answer" "$log"
    {
        grep -qx "$pool_blocks" <<<"$pools" || make_pool_blocks
        grep -qx "$pool_landing" <<<"$pools" || make_pool_landing
    } >>"$log" 2>&1 || failed "the pools cannot be created" "$log"
    touch "$base/pools.complete"
}

# isa is the fast plugin on x86-64 and arm64. stripe_unit is the chunk size: 8 x 128 KiB is a stripe of 1 MiB.
make_pool_blocks() {
    printf '%s\n' \
        "osd erasure-code-profile set $profile plugin=isa technique=reed_sol_van k=8 m=3 crush-failure-domain=${NOS_EC_DEV_CEPH_DOMAIN:-osd} stripe_unit=131072" \
        "osd pool create $pool_blocks $pool_groups $pool_groups erasure $profile" \
        "osd pool application enable $pool_blocks nos_ec" | ceph
    # Tentacle only, and cannot be undone: reads touch only the pages and the OSDs that they need.
    ceph osd pool set "$pool_blocks" allow_ec_optimizations true || [ "$flavour" = system ] || exists_elsewhere
}

make_pool_landing() {
    printf '%s\n' \
        "osd pool create $pool_landing $pool_groups $pool_groups replicated" \
        "osd pool set $pool_landing size 3" \
        "osd pool set $pool_landing min_size 2" \
        "osd pool application enable $pool_landing nos_ec" | ceph
}

# Least privilege for each kind of process (docs/CEPH.md has the table). `mon r` is needed for maps, pool settings, free
# space, states of placement groups and the cluster's log.
roles=(admin front reader producer consumer gc api console operator)
caps_of() {
    case $1 in
    admin | front | consumer | gc) echo "allow rw pool=$pool_landing, allow rw pool=$pool_blocks" ;;
    reader | producer | api | console | operator) echo "allow r pool=$pool_landing, allow r pool=$pool_blocks" ;;
    esac
}

make_client_keys() {
    local role client keyring known log=$base/log/keys.out new=$base/tmp/new_clients.keyring
    local lacking=()
    for role in "${roles[@]}"; do [ -e "$base/client.nos-ec-$role.keyring" ] || lacking+=("$role"); done
    [ ${#lacking[@]} != 0 ] || return 0
    known=$(ceph auth ls 2>"$log" | grep '^client\.') || failed "the keys cannot be listed" "$log"
    (umask 077 && : >"$new")
    for role in "${lacking[@]}"; do
        client=client.nos-ec-$role
        keyring=$base/$client.keyring
        if grep -qx "$client" <<<"$known"; then
            (umask 077 && ceph auth get "$client" >"$keyring.part" 2>"$log") || failed "the key of $client cannot be read" "$log"
        else
            (umask 077 && keyring_entry "$client" mon 'allow r' osd "$(caps_of "$role")" >"$keyring.part")
            cat "$keyring.part" >>"$new"
        fi
    done
    [ ! -s "$new" ] || import_keys "$new" >"$log" 2>&1 || failed "the keys cannot be imported" "$log"
    for role in "${lacking[@]}"; do mv "$base/client.nos-ec-$role.keyring.part" "$base/client.nos-ec-$role.keyring"; done
    rm -f "$new"
}

import_keys() { ceph auth import -i "$1"; }
