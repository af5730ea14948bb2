# The first process of the guest, started by the disk's guest-init. The initial RAM disk has
# mounted /proc, /sys, /dev and /run already.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8
mkdir -p /dev/shm
mount -t tmpfs shm /dev/shm
mount -t tmpfs tmp /tmp
mount -t cgroup2 cgroup2 /sys/fs/cgroup
echo "+cpu +cpuset +memory +pids" > /sys/fs/cgroup/cgroup.subtree_control
hostname trainer07
printf '127.0.0.1 localhost\n127.0.1.1 trainer07\n' > /etc/hosts
ip link set lo up
modprobe virtio_console
cd /root
exec python3 /project/tests/vm/agent.py
