#!/usr/bin/env bash
# Prints the SQL that makes a database user for each kind of process, with the rights that it needs and no others. For
# MySQL 8 and MariaDB. Also writes the user's URL, with a new password, to FOLDER/ROLE/metadata-url: readable for the
# file's owner and for the group of FOLDER/ROLE, which must exist.
# usage: deploy/sql/grants.sh [OPTION VALUE]... FOLDER [ROLE]... | mariadb       (or: | mysql)
#   ROLE         admin front reader producer consumer gc api console operator; without one: all except admin
#   -d DATABASE  name of the database (nos_ec)
#   -n CELL      a cell of the store, which has a database and users of its own: nos-ec-ROLE-CELL, with the URL in
#                FOLDER/ROLE/metadata-url-CELL
#   -s SERVER    host and port for the URL (127.0.0.1:3306)
#   -o OPTIONS   options for the URL, such as ssl_ca=/etc/nos-ec/mysql-ca.pem
#   -c CLIENTS   hosts from which the users may connect, as MySQL writes them (%)
# First create the database, run this for admin, and run `nos-ec init` as that user. Then run this for the others, and
# again after each upgrade: a user whose file exists keeps its password, and gets the rights that it lacks. For a new
# password, remove the file first. Running it twice does no harm.

set -euo pipefail

database=nos_ec server=127.0.0.1:3306 options='' clients=% cell=''
user_length_max=32 # of MySQL
every_role=(front reader producer consumer gc api console operator)

# The rights besides SELECT, which all have on the whole database: ROLE TABLE RIGHTS. Only admin changes the tables that
# are not listed: access_keys, and alembic_version.
rights='
front     blocks             INSERT, UPDATE, DELETE
front     bucket_documents   INSERT, DELETE
front     bucket_grants      INSERT, DELETE
front     bucket_usage       INSERT, DELETE
front     buckets            INSERT, UPDATE (owner, created_ms, acl, deleted_ms), DELETE
front     changed_names      INSERT
front     counters           UPDATE (value)
front     directory          INSERT, UPDATE (owner, created_ms, deleted_ms)
front     journal            INSERT
front     landing_deletions  INSERT, DELETE
front     landing_segments   INSERT, UPDATE (state, sealed_ms, end_bytes, records)
front     leases             INSERT, UPDATE (expires_ms), DELETE
front     objects            INSERT, UPDATE, DELETE
front     outbox             INSERT
front     segments           INSERT, DELETE
front     survival           INSERT, UPDATE (counted_ms, counts)
front     uploads            INSERT, UPDATE (state, since_ms, revision, attributes)
front     usage_changes      INSERT
front     version_floors     INSERT, UPDATE (version)
front     versions           INSERT, DELETE
front     waiting            INSERT, DELETE

producer  bucket_usage       INSERT, UPDATE (bytes, objects, changed_bytes, changed_objects, counted_ms), DELETE
producer  counters           UPDATE (value)
producer  leases             INSERT, UPDATE (expires_ms), DELETE
producer  objects            UPDATE (state)
producer  outbox             DELETE
producer  stored_totals      INSERT, UPDATE (value), DELETE
producer  usage_changes      DELETE
producer  waiting            UPDATE (state, due_ms, published_ms, is_spread)

consumer  blocks             INSERT, UPDATE, DELETE
consumer  changed_names      DELETE
consumer  counters           UPDATE (value)
consumer  directory          UPDATE (home, moves, slices)
consumer  landing_deletions  INSERT, UPDATE (landing_id, doomed, not_before_ms), DELETE
consumer  landing_segments   INSERT, UPDATE (state, sealed_ms, end_bytes, records), DELETE
consumer  leases             INSERT, UPDATE (expires_ms), DELETE
consumer  moves              UPDATE (state, other, number, mover, since_ms)
consumer  objects            UPDATE (state, landing_id, block_id, block_offset)
consumer  stored_totals      INSERT, UPDATE (value), DELETE
consumer  survival           INSERT, UPDATE (counted_ms, counts), DELETE
consumer  waiting            INSERT, UPDATE (landing_id, due_ms), DELETE

gc        blocks             INSERT, UPDATE, DELETE
gc        bucket_documents   INSERT, DELETE
gc        buckets            UPDATE (deleted_ms)
gc        changed_names      INSERT, DELETE
gc        counters           UPDATE (value)
gc        directory          UPDATE (home, moves, slices)
gc        journal            INSERT, DELETE
gc        landing_deletions  INSERT, UPDATE (landing_id, doomed, not_before_ms), DELETE
gc        landing_segments   INSERT, UPDATE (state, sealed_ms, end_bytes, records), DELETE
gc        leases             INSERT, UPDATE (expires_ms), DELETE
gc        moves              UPDATE (state, other, number, mover, since_ms)
gc        objects            INSERT, UPDATE (state, landing_id, block_id, block_offset, trashed), DELETE
gc        outbox             INSERT
gc        segments           DELETE
gc        store_info         INSERT, DELETE
gc        stored_totals      INSERT, UPDATE (value), DELETE
gc        survival           INSERT, UPDATE (counted_ms, counts), DELETE
gc        uploads            UPDATE (state, since_ms, attributes), DELETE
gc        usage_changes      INSERT
gc        version_floors     INSERT, UPDATE (version), DELETE
gc        versions           INSERT, DELETE
gc        waiting            INSERT, UPDATE (landing_id, due_ms), DELETE

operator  changed_names      INSERT
operator  counters           UPDATE (value)
operator  journal            INSERT
operator  objects            UPDATE (trashed)
operator  stored_totals      INSERT, UPDATE (value)
operator  usage_changes      INSERT
operator  version_floors     INSERT, UPDATE (version)
operator  versions           UPDATE (created_ms)
'

failed() { echo "grants: $*" >&2; exit 1; }

# Print the statements that set the password in the user's URL. Without a URL, write one with a new password. A URL that
# this script did not write is left as it is, and so is its user's password.
set_password() { # ROLE FILE USER
    local password
    if [ ! -e "$2" ]; then
        password=$(od -An -N24 -tx1 /dev/urandom | tr -d ' \n')
        (umask 077 && echo "mysql+pymysql://nos-ec-$1$cell:$password@$server/$database${options:+?$options}" >"$2.part")
        chgrp --reference="$folder/$1" "$2.part"
        chmod 0640 "$2.part"
        mv "$2.part" "$2"
    fi
    password=$(sed -nE "s|^mysql\+pymysql://nos-ec-$1$cell:([0-9a-f]{48})@.*|\1|p" "$2")
    [ -n "$password" ] || return 0
    echo "CREATE USER IF NOT EXISTS $3 IDENTIFIED BY '$password';"
    echo "ALTER USER $3 IDENTIFIED BY '$password';"
}

grant() { # ROLE USER
    local table role more=''
    [ "$1" != admin ] || more=', INSERT, UPDATE, DELETE, CREATE, ALTER, INDEX, DROP, REFERENCES'
    # In the name of a whole database, _ stands for any character.
    echo "GRANT SELECT$more ON \`${database//_/\\_}\`.* TO $2;"
    while read -r role table more; do
        [ "$role" != "$1" ] || echo "GRANT $more ON \`$database\`.\`$table\` TO $2;"
    done <<<"$rights"
}

while getopts d:n:s:o:c: option; do
    case $option in
    d) database=$OPTARG ;;
    n) cell=-$OPTARG ;;
    s) server=$OPTARG ;;
    o) options=$OPTARG ;;
    c) clients=$OPTARG ;;
    *) exit 2 ;;
    esac
done
shift $((OPTIND - 1))
[ $# -gt 0 ] || { sed -n 's/^# usage: /usage: /p' "$0" >&2; exit 2; }
[[ $database =~ ^[A-Za-z0-9_-]+$ ]] || failed "the database's name is $database; it must have letters, digits, _ and - only"
[[ $cell =~ ^(-[a-z0-9]+)*$ ]] ||
    failed "the cell is ${cell#-}; its name has the characters a-z and 0-9, and single hyphens between them"
[[ $clients =~ ^[^\'\\]+$ ]] || failed "the clients are $clients; this must not contain quotes"
folder=$1
shift
[ $# -gt 0 ] || set -- "${every_role[@]}"
for role in "$@"; do
    [[ " admin ${every_role[*]} " = *" $role "* ]] || failed "$role is not one of: admin ${every_role[*]}"
    user=nos-ec-$role$cell
    [ ${#user} -le $user_length_max ] ||
        failed "the user $user would have more than $user_length_max characters; give the cell a shorter name"
    [ -d "$folder/$role" ] || failed "there is no folder $folder/$role; create it, with the group of the daemon's user"
done
for role in "$@"; do
    user="'nos-ec-$role$cell'@'$clients'"
    set_password "$role" "$folder/$role/metadata-url$cell" "$user"
    grant "$role" "$user"
done
