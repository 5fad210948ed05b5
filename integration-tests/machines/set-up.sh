# Sourced by a shell in namespaces of its own: machines with names and folders for the commands of docs/operations.md. `ssh` runs a command
# on one; the shell itself is on control-1.
set -euo pipefail
MACHINES=$PWD/machines
export MACHINES
mkdir etc
cp -a /etc/. etc
# Services run as the user of the test, which is also called godel here.
echo "godel:x:$(id -u):$(id -g)::/var/lib/godel:/usr/sbin/nologin" >>etc/passwd
mount --bind etc /etc
mount -t tmpfs tmpfs /var
mkdir -p /var/lib /var/backups /var/log /var/tmp /etc/godel
number=0
for host in control-1 control-2 etcd-1 etcd-2 etcd-3; do
  number=$((number + 1))
  mkdir -p "machines/$host/lib" "machines/$host/default"
  echo "127.0.1.$number $host" >>/etc/hosts
done
echo "127.0.1.1 $(hostname)" >>/etc/hosts
for number in 1 2 3; do
  address=127.0.1.$((number + 2))
  cat >"machines/etcd-$number/default/etcd" <<END
ETCD_NAME=etcd-$number
ETCD_DATA_DIR=/var/lib/etcd
ETCD_LISTEN_CLIENT_URLS=http://$address:2379
ETCD_ADVERTISE_CLIENT_URLS=http://etcd-$number:2379
ETCD_LISTEN_PEER_URLS=http://$address:2380
ETCD_INITIAL_ADVERTISE_PEER_URLS=http://etcd-$number:2380
ETCD_INITIAL_CLUSTER=etcd-1=http://etcd-1:2380,etcd-2=http://etcd-2:2380,etcd-3=http://etcd-3:2380
ETCD_INITIAL_CLUSTER_STATE=new
END
done
set +euo pipefail
