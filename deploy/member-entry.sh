#!/bin/sh
# Starts a service or an agent in a container, once state has made its join token.
token=/run/godel/join/token
until [ -s $token ]; do sleep 0.2; done
exec godel "$@" --join-file $token
