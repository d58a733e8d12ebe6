"""Which processes are accepted at the other end of a binding."""

from __future__ import annotations

import collections.abc
import dataclasses
import enum
import grp
import pwd
import typing

from upcall import _upcall


def _number(given: str | int, what: str, find: collections.abc.Callable[[str], int]) -> int:
    if isinstance(given, str):
        try:
            return find(given)
        except KeyError:
            raise ValueError(f"there is no {what} {given!r} on this machine") from None
    if isinstance(given, bool) or not isinstance(given, int):
        raise TypeError(f"a {what} is a name or a number, not {given!r}")
    if not 0 <= given < 2**32 - 1:
        raise ValueError(f"{given} is not the number of a {what}")
    return given


@dataclasses.dataclass(frozen=True, init=False, repr=False)
class User:
    """Processes of an effective user: ``User("svc")`` or ``User(1001)``."""

    #: The user's number.
    number: int

    def __init__(self, user: str | int) -> None:
        object.__setattr__(
            self, "number", _number(user, "user", lambda name: pwd.getpwnam(name).pw_uid)
        )

    def __repr__(self) -> str:
        return f"User({self.number})"


@dataclasses.dataclass(frozen=True, init=False, repr=False)
class Group:
    """Processes with this effective or supplementary group: ``Group("audio")`` or ``Group(29)``."""

    #: The group's number.
    number: int

    def __init__(self, group: str | int) -> None:
        object.__setattr__(
            self, "number", _number(group, "group", lambda name: grp.getgrnam(name).gr_gid)
        )

    def __repr__(self) -> str:
        return f"Group({self.number})"


@dataclasses.dataclass(frozen=True)
class Host:
    """Processes on a trusted host: ``Host("ws1")``, by the name under which it is trusted here."""

    #: The host's name.
    name: str

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise TypeError(f"the name of a host is a str, not {self.name!r}")


class AnyUser(enum.Enum):
    """The type of `ANY_USER`."""

    ANY_USER = "any user"


#: Processes of every user.
ANY_USER: typing.Final = AnyUser.ANY_USER

#: A function that is called with a process's user, group and process ID, as the kernel reports
#: them. The process ID is 0 for a process that is not visible in this PID namespace, and for a
#: client that connects by `listen`. For a peer on another host, which has proved a host that is
#: trusted here, user and group are 4294967295, and `peer_host()` returns the host.
Admits = collections.abc.Callable[[int, int, int], bool]

#: Which processes are accepted: one of these, or several, at least one of which must accept.
Accepts = typing.Union[
    User,
    Group,
    Host,
    AnyUser,
    Admits,
    collections.abc.Iterable[typing.Union[User, Group, Host, AnyUser, Admits]],
]


def peer_host() -> str | None:
    """In a policy function: the host that the peer has proved.

    It is the name under which the host is trusted here; `None` for a peer on this host, and outside
    a policy function.
    """
    return _upcall.peer_host()


def told(accepts: Accepts) -> tuple[bool, list[int], list[int], list[str], list[Admits]]:
    """For the engine: whether all users are accepted, and whom else the parts accept.

    These are the users, the groups, the hosts, and the functions.
    """
    if isinstance(accepts, (str, int)):
        raise TypeError(
            f"which processes are accepted? Give User({accepts!r}) or Group({accepts!r})"
        )
    single = isinstance(accepts, (User, Group, Host, AnyUser)) or callable(accepts)
    every = (
        [accepts] if single else list(typing.cast("collections.abc.Iterable[typing.Any]", accepts))
    )
    any_user = False
    users: list[int] = []
    groups: list[int] = []
    hosts: list[str] = []
    asked: list[Admits] = []
    for one in every:
        if isinstance(one, AnyUser):
            any_user = True
        elif isinstance(one, User):
            users.append(one.number)
        elif isinstance(one, Group):
            groups.append(one.number)
        elif isinstance(one, Host):
            hosts.append(one.name)
        elif callable(one):
            asked.append(one)
        else:
            raise TypeError(
                f"{one!r} does not say which processes are accepted: "
                "give a User, a Group, a Host, ANY_USER or a function"
            )
    return any_user, users, groups, hosts, asked
