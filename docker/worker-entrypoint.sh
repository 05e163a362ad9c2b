#!/bin/sh
# What runs first in the workers of docker-compose.distributed.yml: the command as one of the stack's workers.
set -eu
export API_URL=http://127.0.0.1:8000 # as the compose file publishes it
exec container stack "$@"
