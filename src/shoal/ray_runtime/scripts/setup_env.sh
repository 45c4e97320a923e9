# shellcheck shell=sh
export RAY_HOME
export PATH="$RAY_HOME/ray/bin:$PATH"
export PYTHONPATH="$RAY_HOME/worker_code/current${PYTHONPATH:+:$PYTHONPATH}"
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH="$HOME/.shoal/auth_token"
