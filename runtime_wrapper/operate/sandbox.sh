#!/bin/bash
# Used by sandbox.py, in two stages:
#   sandbox.sh enter CGROUP CMD...   join the cgroup, make the namespaces, go on with `inside` as their pid 1
#   sandbox.sh inside CMD...         mount what belongs to the new namespaces, then run CMD and reap its orphans
# `unshare --kill-child` ends pid 1, and with it everything inside, when the outer process dies.

fail() { echo "gpulatch sandbox: $*" >&2; exit 125; }

enter() {
  local cgroup=$1; shift
  unshare --mount --pid --net --ipc --cgroup --fork true 2>/dev/null || fail "this host does not let root make namespaces; run it outside a container"
  echo $$ > "$cgroup/cgroup.procs" || fail "cannot join the cgroup $cgroup"
  exec unshare --mount --pid --net --ipc --cgroup --fork --kill-child --propagation private bash "$0" inside "$@"
}

# Processes go to a leaf, so that controllers can be turned on for the cgroups beside it (cgroups(7), no internal
# processes). Which controllers there are depends on the host; none is fine too.
own_cgroups() {
  mount -t cgroup2 none /sys/fs/cgroup && mkdir /sys/fs/cgroup/init && echo 0 > /sys/fs/cgroup/init/cgroup.procs || return 1
  local controller
  for controller in $(< /sys/fs/cgroup/cgroup.controllers); do
    echo "+$controller" > /sys/fs/cgroup/cgroup.subtree_control 2>/dev/null
  done
  return 0
}

# A tmpfs with the harmless nodes of the host bound in: nodes made inside stay inside.
own_dev() {
  local dev=/run/new-dev node pair
  mkdir $dev && mount -t tmpfs -o mode=755 none $dev || return 1
  for node in null zero full random urandom tty fuse; do
    [ -e /dev/$node ] || continue
    touch $dev/$node && mount --bind /dev/$node $dev/$node || return 1
  done
  ln -s /proc/self/fd $dev/fd
  ln -s pts/ptmx $dev/ptmx
  for pair in 0:stdin 1:stdout 2:stderr; do ln -s "/proc/self/fd/${pair%:*}" "$dev/${pair#*:}"; done
  mkdir $dev/pts $dev/shm $dev/mqueue || return 1
  mount -t devpts -o newinstance,ptmxmode=0666,mode=620 none $dev/pts &&
    mount -t tmpfs -o mode=1777 none $dev/shm &&
    mount -t mqueue none $dev/mqueue &&
    mount --move $dev /dev && rmdir $dev
}

inside() {
  mount -t proc proc /proc || fail "cannot mount /proc; run it outside a container"
  mount -t sysfs sys /sys || fail "cannot mount /sys"
  own_cgroups || fail "cannot mount a cgroup2 tree at /sys/fs/cgroup"
  mount -t tmpfs -o mode=755 none /run && mkdir -m 1777 /run/lock || fail "cannot mount /run"
  [ ! -d /var/log ] || mount -t tmpfs -o mode=755 none /var/log || fail "cannot mount /var/log"
  own_dev || fail "cannot make a private /dev"
  ip link set lo up || fail "cannot bring up the interface lo; install iproute2"
  "$@"
  exit $?
}

stage=$1; shift
"$stage" "$@"
