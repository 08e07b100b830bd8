# Runs inside the namespaces of a fresh machine: makes its mounts, then runs the command. fresh.sh starts it as the
# machine's first process.
# arguments: SYSTEM LAYER COMMAND NAME=VALUE...

set -eu
system=$1 layer=$2 command=$3
shift 3
root=$layer/root

unable() { echo "fresh: $*" >&2; exit 3; }

# The layer is not needed after a power cut, so nothing waits for the disk.
mount -t overlay overlay -o "lowerdir=$system,upperdir=$layer/upper,workdir=$layer/work,volatile" "$root" ||
    unable "overlayfs cannot be mounted on $layer; set NOS_EC_DEV_DIR to a folder on another file system"
mkdir -p "$root/project"
mount --bind "$layer/project" "$root/project"
mount -t proc proc "$root/proc"
mount -t sysfs -o ro sysfs "$root/sys"
mount --bind /dev "$root/dev"
[ ! -d "$root/dev/pts" ] || mount -t devpts -o newinstance,ptmxmode=0666 devpts "$root/dev/pts"
[ ! -d "$root/dev/shm" ] || mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"

own=(HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin TERM=dumb)
[ ! -d "$root/usr/local/share/ca-certificates" ] || chroot "$root" env -i "${own[@]}" update-ca-certificates >/dev/null 2>&1 ||
    unable "the host's own certificates cannot be installed"
exec chroot "$root" env -i "${own[@]}" "$@" bash -euc "cd /project; $command"
