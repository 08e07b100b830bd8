#!/usr/bin/env bash
# Builds, installs, upgrades and removes the Debian package, and uses it like an operator without a checkout. Data and
# changed configuration files stay.
# usage: tests/fresh_package.sh     meant for a fresh machine (`make fresh`), after `make venv`, whose tools it uses

set -euo pipefail
cd "$(dirname "$0")/.."
sample=$PWD/README.md
store=/var/lib/nos-ec
shared=/usr/share/nos-ec
roles="admin front reader producer consumer gc api console operator"

apt() { DEBIAN_FRONTEND=noninteractive apt-get -y -qq --no-install-recommends "$@" >/dev/null; }

run_as() { (cd / && nos-ec-as "$@"); } # ROLE COMMAND...: all roles are the user nos-ec here

failed() { echo "$*" >&2; exit 1; }

# The files that messages name as docs/... or deploy/..., and that a reader finds below $shared.
cited() { grep -rhoE --include='*.py' '\b(docs|deploy)/[A-Za-z0-9_./-]*[A-Za-z0-9_]' /opt/nos-ec/lib/python3*/site-packages/nos_* | sort -u; }

# The first block of commands below a heading of deploy/README.md.
commands_below() { # HEADING
    sed -n "/^#* $1\$/,\$p" "$shared/deploy/README.md" | sed -n '/^```$/,/^```$/p' | sed '1d;/^```$/,$d'
}

# Checkouts have other modes under another umask. The package has the same ones from any.
chmod -R go-rx,g+w deploy docs README.md CHANGELOG.md CONTRIBUTING.md LICENSE
# Compressing it as for others would take most of the time. The package is not kept.
built=$(DPKG_DEB_COMPRESSOR_LEVEL=1 deploy/debian/build.sh dist)
! dpkg-deb --contents "$built" | grep -vE '^(l|[-d]rwxr-xr-x root/root|-rw-r--r-- root/root)' || failed "modes of files are wrong"
echo "installing $built"
apt install "$built" man-db
version=$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' nos_ec/__init__.py)
[ "$(nos-ec --version)" = "nos-ec $version" ] || failed "it is another version"
man nos-ec | grep "EXIT STATUS" >/dev/null || failed "it has no man page"
[ "$(cited | wc -l)" -gt 20 ] || failed "no documents are named"
for document in $(cited); do compgen -G "$shared/$document*" >/dev/null || failed "$document is named and not installed"; done
(cd / && nos-ec config show --json) | grep -q '"root": *"/var/lib/nos-ec"' || failed "nos-ec ignores its configuration"

sed -i 's/1GiB/100MiB/' /etc/nos-ec/nos-ec.toml
run_as admin init
run_as front put fresh/README.md - <"$sample"
run_as producer producer --once
run_as consumer consumer --once
run_as reader get fresh/README.md | cmp - "$sample"

echo "upgrading to a version with another sample of the configuration"
dpkg-deb --raw-extract "$built" dist/next
sed -i 's/^Version: .*/&.1/' dist/next/DEBIAN/control
echo "# the next sample" | tee -a dist/next/usr/share/nos-ec/deploy/nos-ec.toml >/dev/null
dpkg-deb --root-owner-group -Zgzip -z1 --build dist/next dist/next.deb >/dev/null
apt install ./dist/next.deb </dev/null
grep -q 100MiB /etc/nos-ec/nos-ec.toml || failed "the configuration was replaced"
run_as reader get fresh/README.md | cmp - "$sample"

echo "preparing it for a cluster"
(cd "$shared" && bash -euc "$(commands_below "Users and configuration")")
for role in $roles; do
    [ "$(stat -c %G "/etc/nos-ec/$role")" = "nos-ec-$role" ] || failed "there is no user nos-ec-$role"
    userdel "nos-ec-$role"
done
cmp "$shared/deploy/cluster/nos-ec.toml" /etc/nos-ec/nos-ec.toml
rm -r /etc/systemd/system/nos-ec-.service.d /etc/nos-ec/[a-z]*/

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
