#!/usr/bin/env bash
# The S3 clients of the test suite. rclone and restic are the distribution's. aws, s3cmd, boto3, minio, s3fs and pyarrow
# are those of requirements/clients.txt, in an environment of their own.
# usage: deploy/dev/s3_clients.sh install|python      (environment: see base.sh)
#   install  install what is missing
#   python   the same, and print the path of the environment's Python, next to which aws and s3cmd are

name=s3_clients
. "$(dirname "$0")/base.sh"
requirements=$repository/requirements/clients.txt
python=$repository/.venv/bin/python
# Other pins, another environment.
environment=$programs/s3-clients-$(sha256sum "$requirements" | cut -c -12)

install() {
    if ! command -v rclone || ! command -v restic; then install_packages rclone restic; fi >/dev/null
    [ -x "$python" ] || python=$(command -v python3) || missing "needs Python: run make venv"
    install_program "$environment" .complete fetch
}

# It is renamed afterwards, so its programs are to be run by its Python: their first lines name the old folder.
fetch() { # FOLDER
    "$python" -m venv "$1" &&
        "$1/bin/python" -m pip install --quiet --no-input --disable-pip-version-check --only-binary :all: \
            --require-hashes -r "$requirements" &&
        touch "$1/.complete"
}

case "${1:-}" in
install) install && echo "$name are installed" ;;
python) install && echo "$environment/bin/python" ;;
*) echo "usage: $0 install|python" >&2; exit 1 ;;
esac
