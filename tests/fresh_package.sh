#!/usr/bin/env bash
# The Debian package: built, installed, used as the user of the daemons, installed over itself, removed. Data and changed
# files of configuration stay.
# usage: tests/fresh_package.sh     meant for a fresh machine (`make fresh`), after `make venv`, whose tools it uses

set -euo pipefail
cd "$(dirname "$0")/.."
sample=$PWD/README.md
store=/var/lib/nos-ec

apt() { DEBIAN_FRONTEND=noninteractive apt-get -y -qq --no-install-recommends "$@" >/dev/null; }

run_as() { (cd / && /opt/nos-ec/bin/nos-ec-as "$@"); } # ROLE COMMAND...: all roles are the user nos-ec here

failed() { echo "$*" >&2; exit 1; }

built=$(deploy/debian/build.sh dist)
echo "installing $built"
apt install "$built" man-db
version=$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' nos_ec/__init__.py)
[ "$(nos-ec --version)" = "nos-ec $version" ] || failed "it is another version"
man nos-ec | grep "EXIT STATUS" >/dev/null || failed "it has no man page"

sed -i 's/1GiB/100MiB/' /etc/nos-ec/nos-ec.toml
run_as admin init
run_as front put fresh/README.md - <"$sample"
run_as producer producer --once
run_as consumer consumer --once
run_as reader get fresh/README.md | cmp - "$sample"

echo "installing it over itself"
apt reinstall "$built"
grep -q 100MiB /etc/nos-ec/nos-ec.toml || failed "the configuration was replaced"
run_as reader get fresh/README.md | cmp - "$sample"

echo "removing it"
apt purge nos-ec
for gone in /opt/nos-ec /etc/nos-ec /usr/bin/nos-ec /lib/systemd/system/nos-ec.target; do
    [ ! -e "$gone" ] || failed "$gone is left"
done
[ "$(stat -c %U "$store/metadata.db")" = nos-ec ] && [ -e "$store/blocks" ] || failed "data was removed"
echo "its data stays in $store"
# What comes next begins without that user and its store, as an empty machine does.
userdel nos-ec
rm -r "$store"
