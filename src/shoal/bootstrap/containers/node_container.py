"""The container of a node: made, started again, given the cluster's secrets.

It belongs to the machine like a process does: made anew when what it is made from has changed,
started again when it has died, and otherwise left alone.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from shoal.bootstrap.applied_state import digest
from shoal.bootstrap.containers import container_errors
from shoal.bootstrap.containers.container_errors import Case
from shoal.bootstrap.containers.image_pull import pull, repository
from shoal.bootstrap.containers.registry_login import LoginSource
from shoal.bootstrap.steps import NodeReporter
from shoal.core.errors import SetupError
from shoal.core.node_phase import Phase
from shoal.providers.model import Instance
from shoal.ray_runtime.ray_stop import stop_command
from shoal.remote.container import (
    CLUSTER_LABEL,
    CONTAINER_HASH_LABEL,
    RUNTIME_FILE,
    Container,
    remove_containers,
)
from shoal.remote.runner import Runner, capture, quote
from shoal.spec.cluster_spec import ContainerSpec, FilesSpec

_SHORT_SECONDS = 60.0

# Ray keeps three tenths of the free memory for objects, in /dev/shm; a tenth more is room for
# its own bookkeeping.
_SHM_SHARE = 0.3 * 1.1
_SHM_LIMIT = 200 * 10**9

# What the engine and the machine say of themselves, a word and a value on each line. $0 is the
# engine, then come the image, its repository, and the container's name.
_FACTS = r"""
command -v "$0" >/dev/null || exit 127
"$0" ps -q >/dev/null || exit 1
say() { printf '%s %s\n' "$1" "$2"; }
case $0 in
podman) root=$(podman info -f '{{.Store.GraphRoot}}' 2>/dev/null) ;;
*)
  root=$(docker info -f '{{.DockerRootDir}}' 2>/dev/null)
  case $(docker info -f '{{.Runtimes}}' 2>/dev/null) in
  *nvidia*) nvidia-smi >/dev/null 2>&1 && say gpu yes ;;
  esac ;;
esac
say free_kib "$(df -Pk "$root" 2>/dev/null | awk 'NR == 2 { print $4 }')"
say memory_kib "$(awk '/^MemAvailable:/ { print $2 }' /proc/meminfo)"
say machine "$(uname -m)"
say image "$("$0" image inspect -f '{{.Id}}' "$1" 2>/dev/null)"
say kin "$("$0" images -q "$2" 2>/dev/null | head -n 1)"
label='{{index .Config.Labels "CLUSTER_LABEL"}}'
if owner=$("$0" container inspect -f "$label" "$3" 2>/dev/null); then say named "of $owner"; fi
""".replace("CLUSTER_LABEL", CLUSTER_LABEL)

# Says whether a container runs a moment after its start, and with which code it ended if not.
# $0 is the engine, $1 the container.
_STAYS = r"""
sleep 0.2
state=$("$0" container inspect -f '{{.State.Running}} {{.State.ExitCode}}' "$1") || exit 1
echo "$state"
case $state in true*) ;; *) "$0" logs --tail 20 "$1" 2>&1 ;; esac
"""

# Brings the cluster's secrets from the machine into the container, through a pipe. $0 is the
# engine, $1 the container, $2 the node's role, $3 what runs inside.
_LODGE = r"""
{
  cat .shoal/auth_token && echo
  if [ "$2" = head ]; then cat .shoal/cluster_key.pub .shoal/cluster_key; fi
} | "$0" exec -i "$1" sh -c "$3" "$2"
"""
_RECEIVE = r"""
set -e
umask 077
cd
mkdir -p .shoal
IFS= read -r token
printf %s "$token" > .shoal/auth_token.new
mv .shoal/auth_token.new .shoal/auth_token
[ "$0" = head ] || exit 0
IFS= read -r public
cat > .shoal/cluster_key.new
mv .shoal/cluster_key.new .shoal/cluster_key
printf '%s\n' "$public" > .shoal/cluster_key.pub
"""


# $0 is the engine, $1 the container, $2 what root runs inside; the rest are directories.
_MAKE_WAY = r"""
container=$1 script=$2
shift 2
user=$("$0" exec "$container" sh -c 'echo "$(id -u):$(id -g)"') || exit 1
"$0" exec -u 0 "$container" sh -c "$script" "$user" "$@"
"""
_OWN_DIRECTORY = r"""
for path in "$@"; do
  [ -d "$path" ] || { mkdir -p "$path" && chown "$0" "$path"; } || exit 1
done
"""


@dataclass(frozen=True)
class NodeContainer:
    """A container that a node is to live in, on its machine. `origin` is a digest of all that it
    is made from; `login` opens the registry that has its image."""

    spec: ContainerSpec
    instance: Instance
    login: LoginSource

    @property
    def container(self) -> Container:
        return Container(self.spec.engine, self.spec.name)

    @property
    def digest(self) -> str:
        made_from = {k: v for k, v in asdict(self.spec).items() if k != "pull_before_run"}
        return digest([self.instance.cluster, made_from])

    @property
    def case(self) -> Case:
        return Case(self.instance.name, self.spec, self.instance.user)


async def build(
    runner: Runner, house: NodeContainer, voice: NodeReporter, *, seconds: float
) -> None:
    """Make the container, in place of any that the cluster has on the machine."""
    voice.phase(Phase.PREPARING, "looks for its image")
    facts = await _facts(runner, house)
    cluster = house.instance.cluster
    owner = facts.get("named", f"of {cluster}").removeprefix("of").strip()
    if owner in ("", "<no value>"):
        raise container_errors.name_taken(house.case)
    if not facts.get("image") or house.spec.pull_before_run:
        voice.phase(Phase.PREPARING, f"pulls {house.spec.image}")
        await pull(runner, house.case, facts, house.login, voice.output, seconds=seconds)
    voice.phase(Phase.PREPARING, "makes its container")
    # What ran outside of it, or in another one, would be in the way.
    before = [stop_command(house.instance.id), remove_containers(cluster), _note(house.spec.engine)]
    if owner != cluster:  # from which the machine was taken
        before.append(quote([house.spec.engine, "rm", "-f", house.spec.name]))
    for command in before:
        await _run(runner, house, command)
    done = await runner.run(_run_command(house, facts), timeout=_SHORT_SECONDS)
    if not done.ok:
        raise container_errors.no_container(house.case, done.tail)
    await _stays(runner, house)


async def wake(runner: Runner, house: NodeContainer, voice: NodeReporter) -> None:
    """Start the container again after it has died, with all that is in it."""
    voice.phase(Phase.PREPARING, "starts its container again")
    await _facts(runner, house)
    await _run(runner, house, quote([house.spec.engine, "start", house.spec.name]))
    await _stays(runner, house)


async def leave(runner: Runner, instance: Instance) -> None:
    """Remove what the cluster has of containers on a machine that is to do without."""
    done = await runner.run(remove_containers(instance.cluster), timeout=_SHORT_SECONDS)
    if not done.ok:
        raise SetupError(
            "the machine's container cannot be removed",
            fix="see what its engine says there, then shoal up again",
            node=instance.name,
            output=done.tail,
        )


async def lodge_secrets(runner: Runner, house: NodeContainer) -> None:
    """Give what lives in the container the cluster's token, and a head its key: they were born
    on the machine, which has to know them as well."""
    argv = [house.spec.engine, house.spec.name, house.instance.role, _RECEIVE]
    done = await runner.run(quote(["sh", "-c", _LODGE, *argv]), timeout=_SHORT_SECONDS)
    if not done.ok:
        # Without the output: it could hold the token.
        raise SetupError(
            "the container cannot keep the cluster's token",
            why="the home directory of its user is not writable",
            fix="give the image's user a home directory of its own",
            node=house.instance.name,
        )


async def make_way(runner: Runner, house: NodeContainer, files: FilesSpec) -> None:
    """Have directories inside for the files that go anywhere but home. Its user may well not be
    allowed to make them, but is to own them."""
    wanted = _directories(files)
    if not wanted:
        return
    argv = [house.spec.engine, house.spec.name, _OWN_DIRECTORY, *sorted(wanted)]
    done = await runner.run(quote(["sh", "-c", _MAKE_WAY, *argv]), timeout=_SHORT_SECONDS)
    if not done.ok:
        raise SetupError(
            "the container has no room for the file mounts",
            why=" ".join(done.tail[-1:]),
            node=house.instance.name,
            output=done.tail,
        )


async def _facts(runner: Runner, house: NodeContainer) -> Mapping[str, str]:
    """What the engine says of itself. A user who has just been let into its group is, once
    logged in anew."""
    spec = house.spec
    names = [spec.image, repository(spec.image), spec.name]
    command = quote(["sh", "-c", _FACTS, spec.engine, *names])
    done, printed = await capture(runner, command, timeout=_SHORT_SECONDS)
    if container_errors.is_forbidden(done.tail):
        await runner.relogin()
        done, printed = await capture(runner, command, timeout=_SHORT_SECONDS)
    if not done.ok:
        raise container_errors.no_engine(house.case, done.code, done.tail)
    pairs = [line.partition(" ") for line in printed]
    return {word: value.strip() for word, _, value in pairs}


def _run_command(house: NodeContainer, facts: Mapping[str, str]) -> str:
    """The command that makes the container. The user's options are shell text, as they are to
    Ray: they may well name variables of the machine."""
    spec, cluster = house.spec, house.instance.cluster
    words = [spec.engine, "run", "--detach", "-it", f"--name={spec.name}"]
    words += [
        f"--label={CLUSTER_LABEL}={cluster}",
        f"--label={CONTAINER_HASH_LABEL}={house.digest}",
    ]
    words += ["--env=LC_ALL=C.UTF-8", "--env=LANG=C.UTF-8"]
    words.append("--stop-signal=SIGKILL")  # a shell does not mind any other, and all would wait
    memory = facts.get("memory_kib", "")
    own_size = any("--shm-size" in option for option in spec.run_options)
    if spec.detect_shm_size and not own_size and memory.isdigit():
        words.append(f"--shm-size={min(int(int(memory) * 1024 * _SHM_SHARE), _SHM_LIMIT)}b")
    if spec.detect_gpu_runtime and facts.get("gpu") == "yes":
        words.append("--runtime=nvidia")
    options = " ".join(spec.run_options)
    return f"{quote(words)} {options} {quote(['--net=host', spec.image, 'bash'])}"


def _directories(files: FilesSpec) -> set[str]:
    return {
        there if Path(here).is_dir() else posixpath.dirname(there)
        for there, here in files.mounts.items()
        if there.startswith("/")
    }


def _note(engine: str) -> str:
    return f"mkdir -p .shoal && {quote(['printf', '%s', engine])} > {RUNTIME_FILE}"


async def _stays(runner: Runner, house: NodeContainer) -> None:
    command = quote(["sh", "-c", _STAYS, house.spec.engine, house.spec.name])
    done, (state, *said) = await capture(runner, f"{command} || echo", timeout=_SHORT_SECONDS)
    runs, _, code = state.partition(" ")
    if runs != "true":
        raise container_errors.ended_at_once(house.case, code or "?", said or done.tail)


async def _run(runner: Runner, house: NodeContainer, command: str) -> None:
    done = await runner.run(command, timeout=_SHORT_SECONDS)
    if not done.ok:
        raise container_errors.no_container(house.case, done.tail)
