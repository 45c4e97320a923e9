#!/bin/sh
# Usage: deploy_controller PYTHON VERSION PACKAGE_DIRECTORY [START_OPTION]... < config.json
# Installs the config and starts the controller. A controller of another Shoal version may not
# understand the config, so it is replaced. PACKAGE_DIRECTORY is relative to the home directory,
# and empty where Shoal is installed. A controller that `prepare_controller` has started finds the
# config by itself, unless there are secrets, which an earlier one may lack.
python=$1
version=$2
package=$3
shift 3
directory=.shoal/controller
if [ -n "$package" ]; then
  export PYTHONPATH="$HOME/$package:$PWD/.shoal/packages${PYTHONPATH:+:$PYTHONPATH}"
fi
mkdir -p "$directory" || exit
cat > "$directory/config.json.new" || exit
if [ -e "$directory/version" ] && [ "$(cat "$directory/version")" != "$version" ]; then
  "$python" -m shoal.controller stop "$directory" || exit
fi
echo "$version" > "$directory/version"
rm -f "$directory/restarts"
mv "$directory/config.json.new" "$directory/config.json" || exit
if [ -e "$directory/prepared-config.json" ]; then
  rm -f "$directory/prepared-config.json"
  case " $* " in *" --secret="*) ;; *)
    if command -v flock > /dev/null && ! flock --shared --nonblock "$directory/supervisor.lock" true; then
      exit 0
    fi
    ;;
  esac
fi
exec "$python" -m shoal.controller start "$directory" "$@"
