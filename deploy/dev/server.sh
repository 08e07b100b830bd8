# A server that is one process with one port: start, stop, status; install (the program only). Sourced after base.sh by
# scripts that set name, port, data (a folder), argument (an argument of its command line that identifies the process),
# and these functions:
#   need_program     install what is missing
#   prepare          write the configuration; its files are overwritten at every start
#   make_data        fill the data folder, which does not exist yet
#   server_command   print the command line, one argument per line
#   port_of_running  the port of the running server; the environment may have changed since its start
#   url              the address for clients
#
# Environment:
#   NOS_EC_DEV_PORT  port on 127.0.0.1 (default: set by the script)

pid_file=$base/server.pid
log=$base/server.log
start_s_max=120 # on a slow machine with other servers, a broker's JVM has needed 65 s
end_s_max=${end_s_max:-60}
may_hang_at_end=${may_hang_at_end:-} # why this server is killed if it does not stop; others are never killed

running_pid() { process_of "$pid_file" "$argument"; }

start() {
    mkdir -p "$base"
    take_lock
    if running_pid >/dev/null; then echo "$name is already running"; url; return; fi
    need_program
    need_free_port "$port"
    prepare
    need_data
    local arguments=()
    mapfile -t arguments < <(server_command)
    trap stop_early EXIT
    trap 'exit 143' INT TERM
    # setsid becomes nohup, and nohup becomes the server, so the recorded pid is the server's own.
    setsid nohup "${arguments[@]}" >>"$log" 2>&1 </dev/null 9>&- &
    echo $! >"$pid_file"
    await_start $!
    trap - EXIT INT TERM
    echo "$name is running as process $(running_pid)"
    url
}

# A start that is interrupted leaves nothing running. The pid may not be recorded yet.
stop_early() {
    local status=$?
    trap - EXIT INT TERM
    if [ "$status" = 143 ]; then
        [ -z "${!:-}" ] || echo $! >"$pid_file"
        end >&2
    fi
    exit "$status"
}

install() {
    need_program
    echo "$name is installed"
}

# A folder that was not filled completely has no .complete, and is recreated.
need_data() {
    [ ! -e "$data/.complete" ] || return 0
    rm -rf "$data"
    make_data >"$base/init.log" 2>&1 </dev/null || failed "the data folder cannot be created" "$base/init.log"
    touch "$data/.complete"
}

await_start() { # PID
    local waited
    for ((waited = 0; waited < start_s_max * 5; waited++)); do
        ! answers_on "$port" || return 0
        kill -0 "$1" 2>/dev/null || failed "it did not start" "$log"
        sleep 0.2
    done
    end >&2
    failed "it did not answer on port $port within $start_s_max s" "$log"
}

stop() {
    [ -d "$base" ] || { echo "$name is not running"; return; }
    take_lock
    end
}

end() {
    local pid
    pid=$(running_pid) || { echo "$name is not running"; return; }
    signal_process "$pid" TERM
    ! await_end "$end_s_max" || { echo "$name stopped"; return; }
    [ -n "$may_hang_at_end" ] || failed "process $pid is still running after $end_s_max s; see $log"
    signal_process "$pid" KILL
    await_end 10 || failed "process $pid cannot be killed; see $log"
    echo "$name did not stop within $end_s_max s and was killed: $may_hang_at_end"
}

await_end() { # SECONDS
    local waited
    for ((waited = 0; waited < $1 * 5; waited++)); do
        running_pid >/dev/null || { rm -f "$pid_file"; return 0; } # in a trap, the status of a bare one is another
        sleep 0.2
    done
    return 1
}

status() {
    running_pid >/dev/null || { echo "$name is not running"; exit 3; }
    answers_on "$(port_of_running)" || failed "process $(running_pid) does not answer on port $(port_of_running)" "$log"
    echo "$name is running as process $(running_pid)"
    url
}

case "${1:-}" in
start | stop | status | install) "$1" ;;
*) echo "usage: $0 start|stop|status|install" >&2; exit 1 ;;
esac
