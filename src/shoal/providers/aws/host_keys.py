"""Knowing a machine from the first connection on, so that nobody in between can pose as it.

A host key for one use is handed over in the launch data and pinned here before the machine is
there. Launch data stays readable on the machine, so at first contact the machine makes a key of
its own, which is pinned here before it is put to use: whenever either end stops, the other still
knows it.
"""

from __future__ import annotations

import asyncio
import itertools
import textwrap
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from email import message_from_string
from email.message import Message
from email.mime.multipart import MIMEMultipart
from email.mime.text import MIMEText
from pathlib import Path
from tempfile import TemporaryDirectory

from shoal.core.clock import Clock
from shoal.core.errors import ShoalError, UnreachableError
from shoal.remote.known_hosts import read, write
from shoal.remote.process import run_process
from shoal.remote.runner import capture, quote
from shoal.remote.ssh_runner import SshRunner
from shoal.remote.ssh_target import SshTarget

_SECONDS = 30.0
_ONE_TIME = "shoal-one-time"
# How long a probe waits for an answer: most are impatient, since what they wait for may come up
# just after they have asked; the last is for machines on the other side of the world.
_PROBES = (0.25, 0.25, 0.25, 2.0)
_PROBE_PAUSE = 0.1

# Both run as root. The first may be repeated; the second ends in a server with the new key, and
# leaves connections that are open alone.
_MAKE_KEY = r"""
set -e
cd /etc/ssh
[ -s shoal_next_key.pub ] || { rm -f shoal_next_key; ssh-keygen -q -t ed25519 -N '' -C '' -f shoal_next_key; }
cat shoal_next_key.pub
"""  # noqa: E501
_USE_KEY = r"""
set -e
cd /etc/ssh
[ -s shoal_next_key ] || exit 0
mv -f shoal_next_key ssh_host_ed25519_key
mv -f shoal_next_key.pub ssh_host_ed25519_key.pub
systemctl reload ssh 2>/dev/null || systemctl reload sshd 2>/dev/null || pkill -HUP -o -x sshd
"""


@dataclass(frozen=True)
class OneTimeKey:
    """A host key that is good until first contact."""

    private: str = field(repr=False)
    public: str


async def new_key() -> OneTimeKey:
    with TemporaryDirectory() as directory:
        file = Path(directory, "key")
        words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", _ONE_TIME, "-f", str(file)]
        done = await run_process(words, timeout=_SECONDS)
        if not done.ok:
            raise ShoalError("ssh-keygen does not work here", output=done.tail)
        return await asyncio.to_thread(_read_key, file)


def _read_key(file: Path) -> OneTimeKey:
    return OneTimeKey(file.read_text(), Path(f"{file}.pub").read_text().strip())


def user_data(key: OneTimeKey, *others: str, lets_in: Sequence[str] = ()) -> str:
    """Launch data that gives a machine its first host key and lets the owners of some public keys
    in, along with `others`, such as the user's own."""
    config = (
        "#cloud-config\n"
        "ssh_deletekeys: true\n"
        "ssh_keys:\n"
        "  ed25519_private: |\n"
        f"{textwrap.indent(key.private, '    ')}"
        f"  ed25519_public: {key.public}\n"
    )
    if lets_in:
        config += "ssh_authorized_keys:\n" + "".join(f"  - {line.strip()}\n" for line in lets_in)
    if not any(others):
        return config
    parts = MIMEMultipart(boundary="shoal-user-data")
    parts.attach(MIMEText(config, "cloud-config", "us-ascii"))
    for other in filter(None, others):
        parts.attach(_part(other))
    return parts.as_string()


def _part(text: str) -> Message:
    """Launch data as a part of more. What has parts itself is taken as such: as one text nobody
    would look into it."""
    if text.lower().startswith(("mime-version:", "content-type: multipart/")):
        return message_from_string(text)
    return MIMEText(text, _kind(text), "utf-8")


def _kind(text: str) -> str:
    """What cloud-init calls launch data that begins so."""
    kinds = {
        "#!": "x-shellscript",
        "#cloud-config": "cloud-config",
        "#include": "x-include-url",
        "#cloud-boothook": "cloud-boothook",
    }
    return next((kind for begin, kind in kinds.items() if text.startswith(begin)), "plain")


def pin(known_hosts: Path, alias: str, public: str, *more: str) -> None:
    """Make these the only keys by which a machine is known."""
    write(known_hosts, {alias: [public, *more]})


class FirstContactRunner(SshRunner):
    """Reaches a machine that may just be booting, and has it change a one-time key. `ended`
    returns, with the reason, when there is nothing to wait for any more."""

    def __init__(
        self, name: str, target: SshTarget, clock: Clock, ended: Callable[[], Awaitable[str]]
    ) -> None:
        super().__init__(name, target, clock=clock)
        self._ended = ended
        self._changing = asyncio.Lock()

    async def connect(self, *, timeout: float) -> None:
        reaching = asyncio.ensure_future(self._reach(timeout))
        ending = asyncio.ensure_future(self._ended())
        try:
            await asyncio.wait((reaching, ending), return_when=asyncio.FIRST_COMPLETED)
            if not reaching.done():
                raise UnreachableError(
                    "its machine is gone",
                    why=await ending,
                    fix="shoal up again asks for another",
                    node=self.name,
                )
            await reaching
        finally:
            reaching.cancel()
            ending.cancel()
            await asyncio.wait((reaching, ending))

    async def _reach(self, timeout: float) -> None:
        deadline = self._clock.monotonic() + timeout
        if self.target.jump is None and self.target.proxy_command is None:
            await self._port_opens(deadline)
        await super().connect(timeout=max(1.0, deadline - self._clock.monotonic()))
        async with self._changing:
            if known := self._one_time_keys():
                await self._change_key(known)

    async def _port_opens(self, deadline: float) -> None:
        """Wait for the machine to listen. A booting machine drops what is sent to it, and TCP
        itself would ask again only after ever longer pauses."""
        port = self.target.port or 22
        for patience in itertools.cycle(_PROBES):
            opening = asyncio.open_connection(self.target.host, port)
            try:
                _, writer = await asyncio.wait_for(opening, patience)
                writer.close()
                return
            except (OSError, asyncio.TimeoutError) as error:
                if self._clock.monotonic() > deadline:
                    raise UnreachableError(
                        f"{self.target} does not answer",
                        why=str(error) or "nothing came back from its SSH port",
                        fix="see that it runs, and that its security group lets this address in: "
                        "shoal up again adds the address",
                        node=self.name,
                    ) from None
            await self._clock.sleep(_PROBE_PAUSE)

    def _one_time_keys(self) -> list[str]:
        """All keys that the machine may have now, if the one-time key is among them."""
        keys = read(self.target.known_hosts).get(self.target.host_key_alias, [])
        return keys if any(key.endswith(_ONE_TIME) for key in keys) else []

    async def _change_key(self, known: list[str]) -> None:
        """A user who may not become root keeps the one-time key: it is still the right one."""
        done, printed = await capture(self, _as_root(_MAKE_KEY), timeout=_SECONDS)
        if not done.ok or not printed:
            return
        alias, new = self.target.host_key_alias, printed[-1]
        pin(self.target.known_hosts, alias, new, *(key for key in known if key != new))
        done = await self.run(_as_root(_USE_KEY), timeout=_SECONDS)
        if done.ok:
            pin(self.target.known_hosts, alias, new)


def _as_root(script: str) -> str:
    return f'"$(command -v sudo || echo env)" {quote(["sh", "-c", script])}'
