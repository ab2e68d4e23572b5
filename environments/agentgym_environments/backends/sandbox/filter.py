"""A seccomp filter: the kernel calls that would let a command out of its limits answer "not permitted".

A name space of one's own could mount memory that nobody counts; memory files and System V's shared memory belong to
no folder and to no process; the others are much attacked and no test needs them.
"""

from __future__ import annotations

import errno
import platform
import struct

CALLS = {
    "x86_64": (
        0xC000003E,
        {
            "unshare": 272, "setns": 308, "mount": 165, "umount2": 166, "pivot_root": 155, "chroot": 161,
            "open_tree": 428, "move_mount": 429, "fsopen": 430, "fsmount": 432, "mount_setattr": 442,
            "memfd_create": 319, "memfd_secret": 447, "shmget": 29, "msgget": 68, "semget": 64, "mq_open": 240,
            "bpf": 321, "perf_event_open": 298, "userfaultfd": 323, "io_uring_setup": 425, "keyctl": 250,
            "add_key": 248, "request_key": 249, "process_vm_writev": 311, "process_vm_readv": 310,
        },
        {"clone": 56, "clone3": 435},
    ),
    "aarch64": (
        0xC00000B7,
        {
            "unshare": 97, "setns": 268, "mount": 40, "umount2": 39, "pivot_root": 41, "chroot": 51,
            "open_tree": 428, "move_mount": 429, "fsopen": 430, "fsmount": 432, "mount_setattr": 442,
            "memfd_create": 279, "memfd_secret": 447, "shmget": 194, "msgget": 186, "semget": 190, "mq_open": 180,
            "bpf": 280, "perf_event_open": 241, "userfaultfd": 282, "io_uring_setup": 425, "keyctl": 219,
            "add_key": 217, "request_key": 218, "process_vm_writev": 271, "process_vm_readv": 270,
        },
        {"clone": 220, "clone3": 435},
    ),
}  # fmt: skip
"""Machine: its mark in seccomp's data, the numbers of what is refused, and of what makes processes."""

NEW_NAMESPACES = 0x7E020080
"""CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET and NEWTIME's place in clone's flags."""

LOAD, JUMP_EQUAL, JUMP_ANY_BIT, JUMP_AT_LEAST, RETURN = 0x20, 0x15, 0x45, 0x35, 0x06
ALLOW, REFUSE, ABSENT, KILL = 0x7FFF0000, 0x00050000 | errno.EPERM, 0x00050000 | errno.ENOSYS, 0x80000000
NUMBER_AT, MACHINE_AT, FIRST_ARGUMENT_AT = 0, 4, 16


def program(machine: str = "") -> bytes:
    """The filter in the kernel's own code; b"" on a machine whose calls we do not know.

    clone3 keeps its flags in memory, where no filter can read them: it is "not there", and C libraries turn to clone.
    """
    machine = machine or platform.machine()
    if machine not in CALLS:
        return b""
    mark, refused, starts = CALLS[machine]
    code = [(LOAD, 0, 0, MACHINE_AT), (JUMP_EQUAL, 1, 0, mark), (RETURN, 0, 0, KILL), (LOAD, 0, 0, NUMBER_AT)]
    code += [(JUMP_AT_LEAST, 0, 1, 0x40000000), (RETURN, 0, 0, REFUSE)]  # x32's numbers
    for number in refused.values():
        code += [(JUMP_EQUAL, 0, 1, number), (RETURN, 0, 0, REFUSE)]
    code += [(JUMP_EQUAL, 0, 1, starts["clone3"]), (RETURN, 0, 0, ABSENT)]
    code += [(JUMP_EQUAL, 0, 3, starts["clone"]), (LOAD, 0, 0, FIRST_ARGUMENT_AT)]
    code += [(JUMP_ANY_BIT, 0, 1, NEW_NAMESPACES), (RETURN, 0, 0, REFUSE), (RETURN, 0, 0, ALLOW)]
    return b"".join(struct.pack("=HBBI", *one) for one in code)
