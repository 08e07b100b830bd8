#!/usr/bin/env bash
# Builds the Debian package of nos_ec: the program with all its Python packages in /opt/nos-ec, from the hashed
# requirements, for the Python of the distribution that it is built on; units, man page, log rotation; and in
# /usr/share/nos-ec the documentation and this folder, with the names that they have in the repository, because documents
# and messages refer to each other by them. `make deb` calls it, after `make venv`, whose tools it uses.
# usage: deploy/debian/build.sh [FOLDER]     prints the path of the package, in FOLDER (default: dist)
# Environment: SOURCE_DATE_EPOCH  date of the man page and of the files in the package

set -eu
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
repository=$(cd "$here/../.." && pwd)
tools=$repository/.venv/bin
folder=${1:-$repository/dist}
python=/usr/bin/python3

failed() { echo "debian: $*" >&2; exit 1; }

[ -x "$tools/python" ] || failed "run \`make venv\` first, or \`make deb\`"
command -v dpkg-deb >/dev/null || failed "needs dpkg-deb, so a system of the Debian family"
"$python" -c 'import ensurepip' 2>/dev/null || failed "needs the package python3-venv"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
tree=$work/tree
program=$tree/opt/nos-ec
shared=$tree/usr/share/nos-ec
documents=(README.md CHANGELOG.md CONTRIBUTING.md docs deploy)
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(date +%s)} PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1
umask 022

# The program is installed in a temporary folder, and then its paths are changed to the final ones, so that building
# needs no root.
install_program() {
    mkdir -p "$program"
    "$tools/python" -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir "$work" "$repository"
    "$python" -m venv "$program"
    "$program/bin/python" -m pip install --quiet --no-compile --require-hashes -r "$repository/requirements/runtime.txt"
    "$program/bin/python" -m pip install --quiet --no-compile --no-deps "$work"/nos_ec-*.whl
    "$program/bin/python" -m pip uninstall --quiet --yes pip setuptools 2>/dev/null
    rm -f "$program"/bin/[Aa]ctivate* "$program"/bin/pip*
    grep -rlIF "$tree" "$program/bin" "$program/pyvenv.cfg" | xargs sed -i "s|$tree||g"
    "$python" -m compileall -q -s "$tree" -p / "$program/lib"
}

install_files() {
    install -D -m 0644 -t "$tree/lib/systemd/system" "$repository"/deploy/systemd/*
    install -D -m 0644 "$repository/deploy/logrotate/nos-ec" "$tree/etc/logrotate.d/nos-ec"
    install -D -m 0644 "$repository/LICENSE" "$tree/usr/share/doc/nos-ec/copyright"
    install -D -m 0755 -t "$program/bin" "$repository/deploy/nos-ec-as"
    mkdir -p "$shared" "$tree/etc/nos-ec" "$tree/usr/share/man/man1" "$tree/usr/bin"
    # The modes of a checkout depend on the umask of its user.
    tar -C "$repository" --exclude=deploy/dev --exclude=deploy/debian --mode=u=rwX,go=rX -c "${documents[@]}" |
        tar -C "$shared" -x
    for document in "${documents[@]}"; do ln -s "../../nos-ec/$document" "$tree/usr/share/doc/nos-ec/$document"; done
    "$tools/python" -m nos_ec.cli.manual "$repository/docs/CLI.md" "$(date -u -d "@$SOURCE_DATE_EPOCH" +%F)" |
        gzip -9n >"$tree/usr/share/man/man1/nos-ec.1.gz"
    ln -s /opt/nos-ec/bin/nos-ec /opt/nos-ec/bin/nos-ec-as "$tree/usr/bin/"
}

write_control() {
    local minor
    minor=$("$python" -c 'import sys; print(sys.version_info.minor)')
    mkdir "$tree/DEBIAN"
    cat >"$tree/DEBIAN/control" <<CONTROL
Package: nos-ec
Version: $version
Architecture: $(dpkg --print-architecture)
Maintainer: the nos_ec developers <nos-ec@localhost>
Depends: python3 (>= 3.$minor), python3 (<< 3.$((minor + 1))), passwd
Recommends: man-db, systemd
Suggests: python3-rados, logrotate
Section: admin
Priority: optional
Installed-Size: $(du -sk "$tree" | cut -f 1)
Description: storage-economy engine of an object store
 Packs many small objects into full erasure-coded stripes, in the background,
 and reclaims the space of deleted objects.
 .
 Installing starts nothing. /usr/share/nos-ec/deploy/README.md says how to set
 up a store.
CONTROL
    (cd "$tree" && find etc -type f -printf '/%p\n') >"$tree/DEBIAN/conffiles"
    install -m 0755 -t "$tree/DEBIAN" "$here"/postinst "$here"/prerm "$here"/postrm
}

install_program
version=$("$program/bin/python" -c 'import nos_ec; print(nos_ec.__version__)')
install_files
write_control
mkdir -p "$folder"
package=$(cd "$folder" && pwd)/nos-ec_${version}_$(dpkg --print-architecture).deb
dpkg-deb --root-owner-group -Zgzip --build "$tree" "$package" >/dev/null
echo "$package"
