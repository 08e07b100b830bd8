#!/usr/bin/env bash
# A Kafka 4 broker (KRaft: broker and controller in one process, no ZooKeeper) for development and tests, on 127.0.0.1
# only, with its own data folder; no system service. The program comes from Maven artifacts and needs Java 17.
# usage: deploy/dev/kafka.sh start|stop|status|install  The last word of start and status is the address for clients.
#
# Kafka's own tools are installed with it, under their usual names: var/dev/kafka-tools-4.0.0/bin/kafka-topics and so on.
#
# Environment, besides that of base.sh and server.sh (the controller takes a free port between 20000 and 29999):
#   NOS_EC_DEV_FAST  1: messages and offsets do not wait for the disk. For test runs only: a crash of the machine
#                    loses data. Otherwise every append is synced, because no second broker has a copy
#   NOS_EC_DEV_KAFKA_LISTENER    one more listener with TLS and SASL, such as SECURE://127.0.0.1:19093
#   NOS_EC_DEV_KAFKA_PROPERTIES  a file with further properties of the broker: what that listener needs, such as
#                                certificates and logins

name=kafka
. "$(dirname "$0")/base.sh"
version=4.0.0
copy_plugin=org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies
heap_max=256m
port=${NOS_EC_DEV_PORT:-19092}
program=$programs/kafka-tools-$version
data=$base/data
properties=$base/server.properties
argument=$properties

# Debian 12's default Java is 17. An older one is not replaced: another program may need it.
need_program() {
    command -v java >/dev/null || install_packages default-jre-headless
    local major
    major=$(java -version 2>&1 | sed -n 's/.* version "\([0-9]*\).*/\1/p')
    [ "${major:-0}" -ge 17 ] || missing "needs Java 17 or newer, found ${major:-none}; put a newer one first in PATH"
    [ -e "$program/.complete" ] || command -v mvn >/dev/null || install_packages maven
    install_program "$program" .complete fetch
}

fetch() { # FOLDER
    pom >"$1/pom.xml" &&
        run_maven -f "$1/pom.xml" "$copy_plugin" -DincludeScope=runtime -DoutputDirectory="$1" &&
        write_tools "$1/bin" &&
        touch "$1/.complete"
}

# The tools that docs/KAFKA.md uses. The scripts of a Kafka distribution have the same names, some of
# them ending with .sh.
write_tools() { # FOLDER
    local tool class
    mkdir "$1"
    while read -r tool class; do
        printf '#!/bin/sh\nexec java %s -cp "$(dirname "$(readlink -f "$0")")/../*" %s "$@"\n' \
            '${KAFKA_HEAP_OPTS:--Xmx256m} -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Dorg.slf4j.simpleLogger.defaultLogLevel=error' \
            "$class" >"$1/$tool" && chmod 755 "$1/$tool" || return 1
    done <<'TOOLS'
kafka-acls org.apache.kafka.tools.AclCommand
kafka-configs kafka.admin.ConfigCommand
kafka-console-consumer org.apache.kafka.tools.consumer.ConsoleConsumer
kafka-console-producer org.apache.kafka.tools.ConsoleProducer
kafka-consumer-groups org.apache.kafka.tools.consumer.group.ConsumerGroupCommand
kafka-get-offsets org.apache.kafka.tools.GetOffsetShell
kafka-reassign-partitions org.apache.kafka.tools.reassign.ReassignPartitionsCommand
kafka-topics org.apache.kafka.tools.TopicCommand
TOOLS
}

# kafka-tools without Kafka Connect, which is 30 MB and which none of these tools needs. slf4j-simple: Kafka ships only the
# interface of a logger, and without a logger it would fail silently.
pom() {
    cat <<POM
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>nos-ec</groupId>
  <artifactId>kafka-for-development</artifactId>
  <version>1</version>
  <dependencies>
    <dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>$version</version></dependency>
    <dependency><groupId>org.apache.kafka</groupId><artifactId>kafka-tools</artifactId><version>$version</version>
      <exclusions>
        <exclusion><groupId>org.apache.kafka</groupId><artifactId>connect-runtime</artifactId></exclusion>
        <exclusion><groupId>com.fasterxml.jackson.jakarta.rs</groupId><artifactId>*</artifactId></exclusion>
      </exclusions>
    </dependency>
    <dependency><groupId>org.slf4j</groupId><artifactId>slf4j-simple</artifactId><version>1.7.36</version></dependency>
  </dependencies>
</project>
POM
}

# Everything that a cluster would replicate has one copy here. For quick tests, the first member of a group does not
# wait for others, and sessions may be short.
write_properties() { # PORT_OF_CONTROLLER
    local more=${NOS_EC_DEV_KAFKA_LISTENER:-}
    cat <<PROPERTIES
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:$1
listeners=PLAINTEXT://127.0.0.1:$port,CONTROLLER://127.0.0.1:$1${more:+,$more}
advertised.listeners=PLAINTEXT://127.0.0.1:$port${more:+,$more}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT${more:+,${more%%:*}:SASL_SSL}
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
    [ -z "${NOS_EC_DEV_KAFKA_PROPERTIES:-}" ] || cat "$NOS_EC_DEV_KAFKA_PROPERTIES"
}

java_options=("-Xmx$heap_max" -Xms64m -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Djava.awt.headless=true
    -Dorg.slf4j.simpleLogger.defaultLogLevel=warn -Dorg.slf4j.simpleLogger.showDateTime=true -cp "$program/*")

prepare() {
    local controller_port
    controller_port=$(free_port_for_controller) || failed "no free port for the controller between 20000 and 29999"
    write_properties "$controller_port" >"$properties"
}

# A port below those that Linux gives to clients, because one of those may be taken at any moment.
free_port_for_controller() {
    local tried candidate
    for ((tried = 1; tried < 100; tried++)); do
        candidate=$((20000 + (port + tried * 97) % 10000))
        case ":$port ${NOS_EC_DEV_KAFKA_LISTENER:-} " in *":$candidate "*) continue ;; esac
        answers_on "$candidate" || { echo "$candidate"; return; }
    done
    return 1
}

# The cluster has one node, so any cluster id will do.
make_data() {
    mkdir -p "$data"
    java "${java_options[@]}" kafka.tools.StorageTool format --cluster-id bm9zLWVjLWRldi1sb2dfMQ --config "$properties"
}

server_command() { printf '%s\n' java "${java_options[@]}" kafka.Kafka "$properties"; }

port_of_running() { sed -n 's|^advertised.listeners=PLAINTEXT://127.0.0.1:\([0-9]*\).*|\1|p' "$properties"; }

url() { echo "127.0.0.1:$(port_of_running)"; }

. "$here/server.sh"
