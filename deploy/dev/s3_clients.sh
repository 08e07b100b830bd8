#!/usr/bin/env bash
# The S3 clients of the test suite. rclone, restic, docker-registry and pgBackRest come from the distribution. aws,
# s3cmd, boto3, minio, obstore, s3fs and pyarrow come from requirements/clients.txt, in a separate environment, which also
# has a Go compiler. It builds tests/rig/s3_programs/go, whose go.sum pins minio-go and the AWS SDK.
# usage: deploy/dev/s3_clients.sh install|python|go|compiler|registry|postgres      (environment: see base.sh)
#   install   install what is missing
#   python    the environment, rclone and restic; prints the path of its Python, next to which aws and s3cmd are
#   go        the clients in Go; prints the path of their program
#   compiler  the Go compiler; prints its path
#   registry  Docker's registry; prints the path of its program
#   postgres  pgBackRest, psql and PostgreSQL; prints the folder of the server's programs

name=s3_clients
. "$(dirname "$0")/base.sh"
requirements=$repository/requirements/clients.txt
source=$repository/tests/rig/s3_programs/go
python=$repository/.venv/bin/python
# Other pins give another environment.
environment=$programs/s3-clients-$(sha256sum "$requirements" | cut -c -12)
registry=$programs/docker-registry-debian

need_python() {
    if ! command -v rclone || ! command -v restic; then install_packages rclone restic; fi >/dev/null
    need_environment
}

need_environment() {
    [ -x "$python" ] || python=$(command -v python3) || missing "needs Python: run make venv"
    install_program "$environment" .complete fetch
}

# The folder is renamed afterwards, so run its programs with its Python: their first lines name the old folder.
fetch() { # FOLDER
    "$python" -m venv "$1" &&
        "$1/bin/python" -m pip install --quiet --no-input --disable-pip-version-check --only-binary :all: \
            --require-hashes -r "$requirements" &&
        touch "$1/.complete"
}

need_go() {
    go_clients=$programs/s3-go-clients-$(cat "$requirements" "$source"/* | sha256sum | cut -c -12)
    [ -e "$go_clients/.complete" ] || need_environment
    install_program "$go_clients" .complete build
}

# Go's downloads and compiled packages are kept out of the home folder, and removed afterwards.
build() { # FOLDER
    local go
    go=$(compiler) &&
        GOTOOLCHAIN=local GOFLAGS=-modcacherw GOPATH=$1/path GOCACHE=$1/cache CGO_ENABLED=0 \
            "$go" build -C "$source" -mod=readonly -buildvcs=false -o "$1/go-clients" . &&
        rm -r "$1/path" "$1/cache" &&
        touch "$1/.complete"
}

compiler() {
    "$environment/bin/python" -c 'import go, pathlib; print(pathlib.Path(go.__file__).parent / "bin/go")'
}

need_registry() {
    command -v docker-registry >/dev/null && return
    if ! command -v apt-get || ! command -v dpkg-deb; then
        missing "needs docker-registry; install it with your system's package manager"
    fi >/dev/null
    install_program "$registry" .complete unpack
}

unpack() { unpack_package docker-registry "$1"; } # FOLDER

# The server's package would start a service. The other two packages bring all libraries that the server needs.
need_postgres() {
    local version folder
    if ! command -v pgbackrest || ! command -v psql; then install_packages pgbackrest postgresql-client; fi >/dev/null
    postgres=$(command -v initdb) && postgres=$(dirname "$postgres") && return
    version=$(psql --version | grep -oE -m1 '[0-9]+' | head -n1)
    package=postgresql-$version
    postgres=/usr/lib/postgresql/$version/bin
    [ ! -x "$postgres/initdb" ] || return 0
    folder=$programs/$package-debian
    install_program "$folder" .complete unpack_server
    postgres=$folder$postgres
}

unpack_server() { unpack_package "$package" "$1"; } # FOLDER

case "${1:-}" in
install) need_python && need_go && need_registry && need_postgres && echo "$name are installed" ;;
python) need_python && echo "$environment/bin/python" ;;
go) need_go && echo "$go_clients/go-clients" ;;
compiler) need_environment && compiler ;;
registry) need_registry && { command -v docker-registry || echo "$registry/usr/bin/docker-registry"; } ;;
postgres) need_postgres && echo "$postgres" ;;
*) echo "usage: $0 install|python|go|compiler|registry|postgres" >&2; exit 1 ;;
esac
