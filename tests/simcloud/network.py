"""The network between simulated hosts: one router in a namespace that has no way out.

A `Fabric` is a thread that lives in a network namespace of its own and runs an event loop there.
Every wire of the cloud ends in it and every service of the cloud listens in it, so two clouds
cannot meet, whatever addresses they use, and nothing on the computer itself is configured.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import ipaddress
import itertools
import threading
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from tests.simcloud import kernel
from tests.simcloud.link_delay import Delay
from tests.simcloud.processes import execute

GATEWAY = "169.254.1.1"
GATEWAY6 = "fe80::1"
METADATA = "169.254.169.254"
SERVICES = "198.51.100.1"
"""Where the laptop and the hosts find the cloud's API."""
LAPTOP = "198.51.100.20"
OUTSIDE = "198.51.100.0/24"
"""The internet, as far as there is one here."""
PUBLIC_RANGE = "203.0.113.0/24"
_IPV6_PREFIX = ipaddress.ip_network("2001:db8::/96")

_SILENT_RANGES = ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", PUBLIC_RANGE)
"""Addresses that time out when no host has them, as in a cloud; any other is unreachable."""

_RULES = """
table inet fabric {
    set severed { type ifname; }
    set ssh_denied { type ifname; flags timeout; }
    map lossy { type ifname : verdict; }
    map guarded { type ifname : verdict; }
    map private_of { type ipv4_addr : ipv4_addr; }
    map public_of { type ipv4_addr : ipv4_addr; }

    chain delayed {
        type filter hook prerouting priority raw; policy accept;
        iifname "slow*" notrack comment "these packets were judged before they were delayed"
    }
    chain input {
        type filter hook input priority filter; policy accept;
        iifname @severed drop
    }
    chain forward {
        type filter hook forward priority filter; policy accept;
        iifname @severed drop
        oifname @severed drop
        iifname vmap @lossy
        oifname vmap @lossy
        oifname @ssh_denied tcp dport 22 reject with tcp reset
        ct state established,related,untracked accept
        oifname vmap @guarded
    }
    chain inbound {
        type nat hook prerouting priority dstnat; policy accept;
        dnat ip to ip daddr map @private_of
    }
    chain outbound {
        type nat hook postrouting priority srcnat; policy accept;
        ct status dnat snat ip to ip saddr map @public_of
    }
}
"""

_FIRST_TABLE = 1000
"""Routing tables from here on lead past a delay, to the link itself."""

T = TypeVar("T")


def ipv6_of(address: str) -> str:
    """Return the IPv6 address of the machine that has this IPv4 address."""
    return str(_IPV6_PREFIX[int(ipaddress.IPv4Address(address))])


def slow_name(link: str) -> str:
    """Return the name of the device that stands in for a link that is slowed down."""
    return f"slow{link}"


class Fabric:
    """A router, and the thread whose sockets and commands are at home in its namespace."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._numbers = itertools.count(1)
        self._links: dict[str, str] = {}
        self._delays: dict[str, Delay] = {}
        self._thread = threading.Thread(target=self._live, name="simcloud", daemon=True)
        self._ready: asyncio.Future[None] | None = None

    async def open(self) -> None:
        caller = asyncio.get_running_loop()
        ready = self._ready = caller.create_future()
        self._thread.start()
        await ready

    def _live(self) -> None:
        assert self._ready is not None
        ready, caller = self._ready, self._ready.get_loop()
        asyncio.set_event_loop(self.loop)
        try:
            kernel.unshare(kernel.CLONE_NEWNET)
            Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
            Path("/proc/sys/net/ipv6/conf/all/forwarding").write_text("1")
            self.loop.run_until_complete(self._set_up())
        except BaseException as error:
            caller.call_soon_threadsafe(ready.set_exception, error)
            return
        caller.call_soon_threadsafe(ready.set_result, None)
        self.loop.run_forever()
        for delay in self._delays.values():
            delay.close()
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()

    async def close(self) -> None:
        """Stop the thread. Machines still running were its children, and die with it."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        await asyncio.to_thread(self._thread.join)

    async def within(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the fabric's own loop, from whichever loop the caller is on."""
        if asyncio.get_running_loop() is self.loop:
            return await work
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self.loop))

    async def _set_up(self) -> None:
        await self._ip(
            "link set lo up",
            *(f"addr add {address}/32 dev lo" for address in (GATEWAY, METADATA, SERVICES)),
            *(f"route add blackhole {block}" for block in _SILENT_RANGES),
        )
        await self.nft(_RULES)

    async def attach(self, pid: int, address: str) -> str:
        """Wire the network namespace of a process to the router; return the link's name.

        Beside its IPv4 address the machine has an IPv6 address (`ipv6_of`).
        """
        if address in self._links:
            raise ValueError(f"{address} is already taken in this cloud")
        link = self._links[address] = f"v{next(self._numbers)}"
        await self._ip(
            f"link add {link} type veth peer name eth0 netns {pid}",
            f"link set {link} up",
            f"route replace {address}/32 dev {link}",
            f"addr add {GATEWAY6}/64 dev {link} nodad",
            f"route replace {ipv6_of(address)}/128 dev {link}",
        )
        return link

    async def route(self, link: str, address: str) -> None:
        """Have the router send packets for another address to a link."""
        await self._ip(f"route replace {address}/32 dev {link}")

    async def forget(self, address: str) -> None:
        """Free an address whose machine is gone: its link went with the namespace."""
        self._links.pop(address, None)

    async def publish(self, public: str, private: str) -> None:
        """Have the router carry a public address to a private one, one to one."""
        await self.nft(
            f"add element inet fabric private_of {{ {public} : {private} }}\n"
            f"add element inet fabric public_of {{ {private} : {public} }}\n"
        )

    async def withdraw(self, public: str, private: str) -> None:
        await self.nft(
            f"delete element inet fabric private_of {{ {public} : {private} }}\n"
            f"delete element inet fabric public_of {{ {private} : {public} }}\n"
        )

    async def slow_down(self, link: str, address: str, seconds: float) -> None:
        """Have every packet to an address take this much longer; 0 ends it."""
        device = slow_name(link)
        if link in self._delays:
            self._delays.pop(link).close()
            # The route to the device went with it; what remains is the way past it.
            await self._ip(f"rule del iif {device}", f"route replace {address}/32 dev {link}")
        if seconds:
            self._delays[link] = Delay(device, seconds)
            table = int(link[1:]) + _FIRST_TABLE
            await self._ip(
                f"link set {device} up",
                f"route replace {address}/32 dev {link} table {table}",
                f"rule add iif {device} lookup {table}",
                f"route replace {address}/32 dev {device}",
            )

    async def sever(self, link: str) -> None:
        """Lose every packet to and from a link, in silence, open connections included."""
        await self.nft(f'add element inet fabric severed {{ "{link}" }}')

    async def mend(self, link: str) -> None:
        # Adding first makes it no error to mend what was never severed.
        await self.nft(
            f'add element inet fabric severed {{ "{link}" }}\n'
            f'delete element inet fabric severed {{ "{link}" }}\n'
        )

    async def nft(self, commands: str) -> None:
        result = await execute(["nft", "-f", "-"], stdin=commands)
        result.require(f"nft {commands}")

    async def _ip(self, *commands: str) -> None:
        result = await execute(["ip", "-batch", "-"], stdin="\n".join(commands) + "\n")
        result.require("ip " + "; ".join(commands))


class _OnFabric(Protocol):
    @property
    def fabric(self) -> Fabric: ...


S = TypeVar("S", bound=_OnFabric)
P = ParamSpec("P")


def on_fabric(
    method: Callable[Concatenate[S, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]:
    """Let a method be awaited from any loop, while its state is only touched on the fabric's."""

    @functools.wraps(method)
    async def hop(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.fabric.within(method(self, *args, **kwargs))

    return hop


@contextlib.contextmanager
def network_of(pid: int) -> Iterator[None]:
    """Put this thread into a process's network: its new sockets and children are there too.

    Threads that exist already stay where they are, so a pool that was warm before is outside.
    """
    here = Path("/proc/thread-self/ns/net")
    with here.open() as home, Path(f"/proc/{pid}/ns/net").open() as there:
        kernel.setns(there.fileno(), kernel.CLONE_NEWNET)
        try:
            yield
        finally:
            kernel.setns(home.fileno(), kernel.CLONE_NEWNET)
