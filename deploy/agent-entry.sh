#!/bin/sh
# Starts the agent of a container. With version 2 of control groups a group that has processes gives no controllers away, so
# all processes of the container move into a group of their own first; the groups of running units are beside it.
root=/sys/fs/cgroup
if [ -e $root/cgroup.controllers ] && mkdir -p $root/agent 2>/dev/null; then
  for pid in $(cat $root/cgroup.procs); do
    echo "$pid" >$root/agent/cgroup.procs
  done 2>/dev/null
fi
# The token belongs to the user of the services, and an agent refuses files of other users than its own: it gets the token as standard input.
token=/run/godel/join/token
until [ -s $token ]; do sleep 0.2; done
exec godel agent "$@" --join-file - <$token
