#!/usr/bin/env bash
# A Kafka 4 broker (KRaft: broker and controller in one process, no ZooKeeper) for development and tests, on 127.0.0.1
# only, with its own data folder; no system service. The program comes out of Maven artifacts and needs Java 17.
# usage: deploy/dev/kafka.sh start|stop|status        The last word of start and status is what clients connect to.
#
# Environment:
#   NOS_EC_DEV_DIR   where data, log and pid go (default: var/dev in the repository, ignored by git)
#   NOS_EC_DEV_PORT  port on 127.0.0.1 (default: 19092); the controller takes a free one between 20000 and 29999
#   NOS_EC_DEV_FAST  1: messages and offsets do not wait for the disk. For test runs only: a crash of the machine
#                    loses data. Otherwise every append is synced, as there is no second broker that has it too
# Exit status: 0 done; 1 failed; 3 something is missing and cannot be installed (status: 3 means not running).

set -eu
name=kafka
version=4.0.0
artifact=org.apache.kafka:kafka_2.13:$version
copy_plugin=org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies
heap_max=256m
repository=$(cd "$(dirname "$0")/../.." && pwd)
base=${NOS_EC_DEV_DIR:-$repository/var/dev}/$name
port=${NOS_EC_DEV_PORT:-19092}
# Kept apart from the data, so that a fresh data folder does not mean a fresh download.
program=$repository/var/dev/kafka-$version
data=$base/data
properties=$base/server.properties
pid_file=$base/server.pid
log=$base/server.log
wait_s_max=60

missing() { echo "$name: $*" >&2; exit 3; }

# Install Debian packages, or say which ones are missing.
install_packages() {
    command -v apt-get >/dev/null || missing "needs the packages: $*; install them by your system's means"
    local as_root=
    if [ "$(id -u)" != 0 ]; then
        sudo -n true 2>/dev/null || missing "needs root or sudo to install the packages: $*"
        as_root="sudo -n"
    fi
    $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "$@" >"$base/install.log" 2>&1 ||
        { $as_root apt-get update -q >>"$base/install.log" 2>&1 &&
            $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "$@" >>"$base/install.log" 2>&1; } ||
        missing "could not install $*; see $base/install.log"
}

# Debian 12's default Java is 17. An older one is not replaced: another program may need it.
need_java() {
    command -v java >/dev/null || install_packages default-jre-headless
    local major
    major=$(java -version 2>&1 | sed -n 's/.* version "\([0-9]*\).*/\1/p')
    [ "${major:-0}" -ge 17 ] || missing "needs Java 17 or newer, found ${major:-none}; put a newer one first in PATH"
}

need_program() {
    [ -e "$program/.complete" ] && return
    command -v mvn >/dev/null || install_packages maven
    local part
    mkdir -p "$(dirname "$program")"
    part=$(mktemp -d "$program.XXXXXX")
    pom >"$part/pom.xml"
    mvn -q -B -f "$part/pom.xml" "$copy_plugin" -DincludeScope=runtime -DoutputDirectory="$part" >"$base/fetch.log" 2>&1 ||
        { rm -rf "$part"; missing "could not fetch $artifact with Maven; see $base/fetch.log"; }
    touch "$part/.complete"
    # Of several that fetch at once the first one wins.
    mv -T "$part" "$program" 2>/dev/null || { rm -rf "$part"; [ -e "$program/.complete" ]; }
}

# slf4j-simple: Kafka brings the interface of a logger only, and would fail without a word.
pom() {
    cat <<POM
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>nos-ec</groupId>
  <artifactId>kafka-for-development</artifactId>
  <version>1</version>
  <dependencies>
    <dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>$version</version></dependency>
    <dependency><groupId>org.slf4j</groupId><artifactId>slf4j-simple</artifactId><version>1.7.36</version></dependency>
  </dependencies>
</project>
POM
}

# Everything that a cluster would replicate has one copy here. The first member of a group is not kept waiting for
# others, and sessions may be short: both for the sake of quick tests.
write_properties() {
    cat <<PROPERTIES
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:$1
listeners=PLAINTEXT://127.0.0.1:$port,CONTROLLER://127.0.0.1:$1
advertised.listeners=PLAINTEXT://127.0.0.1:$port
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
log.dirs=$data
auto.create.topics.enable=false
default.replication.factor=1
min.insync.replicas=1
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=1000
broker.session.timeout.ms=3000
broker.heartbeat.interval.ms=500
num.network.threads=2
num.io.threads=2
log.cleaner.dedupe.buffer.size=4194304
PROPERTIES
    [ "${NOS_EC_DEV_FAST:-0}" != 0 ] || echo log.flush.interval.messages=1
}

java_options=("-Xmx$heap_max" -Xms64m -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Djava.awt.headless=true
    -Dorg.slf4j.simpleLogger.defaultLogLevel=warn -Dorg.slf4j.simpleLogger.showDateTime=true -cp "$program/*")

# A folder that was formatted halfway has no .complete, and is made anew. It has one node, so any cluster id will do.
format_data() {
    [ -e "$data/.complete" ] && return
    rm -rf "$data"
    mkdir -p "$data"
    java "${java_options[@]}" kafka.tools.StorageTool format --cluster-id bm9zLWVjLWRldi1sb2dfMQ --config "$properties" >"$base/init.log" 2>&1 </dev/null ||
        failed "$base/init.log"
    touch "$data/.complete"
}

# The pid of our broker; fails when it does not run. A pid that now belongs to another program does not count.
running_pid() {
    local pid
    pid=$(cat "$pid_file" 2>/dev/null) || return 1
    tr '\0' '\n' <"/proc/$pid/cmdline" 2>/dev/null | grep -qxF -- "$properties" || return 1
    echo "$pid"
}

answers() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }

# Below the ports that Linux gives to clients: one of those may be taken at any moment.
free_port_for_controller() {
    local tried candidate
    for ((tried = 1; tried < 100; tried++)); do
        candidate=$((20000 + (port + tried * 97) % 10000))
        [ "$candidate" = "$port" ] || answers "$candidate" || { echo "$candidate"; return; }
    done
    echo "$name: no free port for the controller between 20000 and 29999" >&2
    return 1
}

start() {
    if running_pid >/dev/null; then echo "$name runs already"; url; return; fi
    mkdir -p "$base"
    need_java
    need_program
    ! answers "$port" || { echo "$name: port $port is taken by another program; set NOS_EC_DEV_PORT" >&2; exit 1; }
    local controller_port
    controller_port=$(free_port_for_controller)
    write_properties "$controller_port" >"$properties"
    format_data
    # setsid becomes nohup, and nohup the broker: the pid noted is the broker's own.
    setsid nohup java "${java_options[@]}" kafka.Kafka "$properties" >"$log" 2>&1 </dev/null &
    echo $! >"$pid_file"
    await_start $!
    url
}

await_start() {
    local waited
    for ((waited = 0; waited < wait_s_max * 5; waited++)); do
        answers "$port" && return
        kill -0 "$1" 2>/dev/null || failed "$log"
        sleep 0.2
    done
    stop
    failed "$log"
}

failed() { echo "$name did not start; the end of $1:" >&2; tail -n 20 "$1" >&2; exit 1; }

stop() {
    local pid waited
    pid=$(running_pid) || { echo "$name does not run"; return; }
    kill "$pid"
    for ((waited = 0; waited < wait_s_max * 5; waited++)); do
        running_pid >/dev/null || { rm -f "$pid_file"; echo "$name stopped"; return; }
        sleep 0.2
    done
    echo "$name: process $pid is still there after $wait_s_max s; see $log" >&2
    exit 1
}

status() {
    running_pid >/dev/null || { echo "$name does not run"; exit 3; }
    echo "$name runs as process $(running_pid)"
    url
}

# A broker that runs says which port it was started with; the environment may have changed since.
url() { sed -n 's|^advertised.listeners=PLAINTEXT://||p' "$properties"; }

case "${1:-}" in
start | stop | status) "$1" ;;
*) echo "usage: $0 start|stop|status" >&2; exit 1 ;;
esac
