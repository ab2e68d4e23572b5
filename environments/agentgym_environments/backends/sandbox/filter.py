"""A seccomp filter: the kernel calls that would let a command out of its limits answer "not permitted".

The list is Docker's and bubblewrap's, and what else makes memory that nobody counts or changes another process. It is
assembled here, since a library for it (libseccomp) is not on every machine.
"""

from __future__ import annotations

import errno
import platform
import struct
from typing import NamedTuple

from agentgym_environments.backends.sandbox import calls

LOAD, JUMP_EQUAL, JUMP_ANY_BIT, JUMP_GREATER, JUMP_AT_LEAST, RETURN = 0x20, 0x15, 0x45, 0x25, 0x35, 0x06
ALLOW, KILL = 0x7FFF0000, 0x80000000
REFUSE, ABSENT = 0x00050000 | errno.EPERM, 0x00050000 | errno.ENOSYS
NUMBER_AT, MACHINE_AT, ARGUMENTS_AT = 0, 4, 16
X32 = 0x40000000
"""Numbers from here on are of the x32 interface, which would go around a filter of x86-64's numbers."""

NEW_NAMESPACES = 0x7E020080
"""CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET and NEWTIME's place in clone's flags."""
UNIX, INET, INET6 = 1, 2, 10
STREAM, DATAGRAM = 1, 2
TCP, UDP = 6, 17
SOL_SOCKET = 1
BUFFER_SIZES = (7, 8, 32, 33)
"""SO_SNDBUF, SO_RCVBUF and their forced forms: sockets keep the buffers that the memory look counts on."""


class Check(NamedTuple):
    """One condition on an argument: 32 bits of it, the upper half when `high`."""

    argument: int
    operation: str
    """"is", "is not", or "has" any of the bits."""
    value: int
    high: bool = False


def is_none_of(argument: int, *values: int) -> tuple[Check, ...]:
    return tuple(Check(argument, "is not", value) for value in values)


REFUSED = (
    ("clone", (Check(0, "has", NEW_NAMESPACES),)),
    # Limits of other processes; a null pointer, of both halves, only reads.
    ("prlimit64", (Check(0, "is not", 0), Check(2, "is not", 0))),
    ("prlimit64", (Check(0, "is not", 0), Check(2, "is not", 0, high=True))),
    ("setpriority", (Check(0, "is not", 0),)),
    ("setpriority", (Check(1, "is not", 0),)),
    ("sched_setscheduler", (Check(0, "is not", 0),)),
    ("sched_setparam", (Check(0, "is not", 0),)),
    ("sched_setattr", (Check(0, "is not", 0),)),
    ("socket", is_none_of(0, UNIX, INET, INET6)),
    ("socket", (*is_none_of(0, UNIX), *is_none_of(2, 0, TCP, UDP))),
    ("socketpair", is_none_of(0, UNIX)),
    *(("setsockopt", (Check(1, "is", SOL_SOCKET), Check(2, "is", option))) for option in BUFFER_SIZES),
    ("fcntl", (Check(1, "is", 1031),)),  # F_SETPIPE_SZ
    ("fcntl", (Check(1, "is", 1026),)),  # F_NOTIFY
    # PR_SET_SECCOMP, PR_SET_THP_DISABLE (large pages are filled faster than anybody looks), PR_SCHED_CORE
    *(("prctl", (Check(0, "is", option),)) for option in (22, 41, 62)),
    ("personality", is_none_of(0, 0, 0xFFFFFFFF)),
    ("mmap", (Check(3, "has", 0x40000),)),  # MAP_HUGETLB: pages that the machine has set aside
    *(("ioctl", (Check(1, "is", request),)) for request in (0x5412, 0x541C)),  # TIOCSTI, TIOCLINUX
)
"""Calls that are refused where all checks of a row hold."""
NEEDS_A_CONTROL_GROUP = (
    # MAP_SHARED and MAP_ANONYMOUS: such memory stays when all of it but a page is unmapped, and then no process has it.
    ("mmap", (Check(3, "has", 0x01), Check(3, "has", 0x20))),
)


def program(machine: str = "", control_group: bool = False) -> bytes:
    """The filter in the kernel's own code; b"" on a machine whose calls we do not know.

    control_group: one counts the memory of the sandbox, so that calls whose memory nobody else can count are allowed.

    clone3 keeps its flags in memory, where no filter can read them: it is "not there", and C libraries turn to clone.
    So are the calls that came after this list, and epoll, inotify and sendfile, since programs have other means.
    """
    machine = machine or platform.machine()
    if machine not in calls.MACHINES:
        return b""
    column, mark = calls.MACHINES[machine]
    code = [(LOAD, 0, 0, MACHINE_AT), (JUMP_EQUAL, 1, 0, mark), (RETURN, 0, 0, KILL), (LOAD, 0, 0, NUMBER_AT)]
    code += [(JUMP_AT_LEAST, 0, 1, X32), (RETURN, 0, 0, REFUSE)]
    code += [(JUMP_GREATER, 0, 1, calls.NEWEST), (RETURN, 0, 0, ABSENT)]
    absent = {"clone3": calls.BY_ARGUMENT["clone3"], **({} if control_group else calls.NEEDS_A_CONTROL_GROUP)}
    refused = {
        **calls.OTHER_PROCESSES,
        **calls.NAMESPACES,
        **calls.UNCOUNTED_MEMORY,
        **calls.MUCH_ATTACKED,
        **calls.OF_THE_MACHINE,
    }
    for names, answer in ((refused, REFUSE), (absent, ABSENT)):
        for numbers in names.values():
            if (number := numbers[column]) is not None:
                code += [(JUMP_EQUAL, 0, 1, number), (RETURN, 0, 0, answer)]
    for name, checks in REFUSED if control_group else (*REFUSED, *NEEDS_A_CONTROL_GROUP):
        number = calls.BY_ARGUMENT[name][column]
        assert number is not None
        code += _row(number, checks)
    return b"".join(struct.pack("=HBBI", *one) for one in [*code, (RETURN, 0, 0, ALLOW)])


def _row(number: int, checks: tuple[Check, ...]) -> list[tuple[int, int, int, int]]:
    """Code that refuses the call where all checks hold, and goes on behind itself where one does not."""
    length = 2 + 2 * len(checks) + 1
    code = [(LOAD, 0, 0, NUMBER_AT), (JUMP_EQUAL, 0, length - 2, number)]
    for check in checks:
        code.append((LOAD, 0, 0, ARGUMENTS_AT + 8 * check.argument + 4 * check.high))  # both machines are little-endian
        rest = length - len(code) - 1
        if check.operation == "is not":
            code.append((JUMP_EQUAL, rest, 0, check.value))
        else:
            code.append((JUMP_EQUAL if check.operation == "is" else JUMP_ANY_BIT, 0, rest, check.value))
    return [*code, (RETURN, 0, 0, REFUSE)]
