"""Numbers of the kernel calls that `filter.py` speaks of: name -> (x86-64, ARM 64), None where a machine has none."""

from __future__ import annotations

MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
"""Machine -> its column, and its mark in seccomp's data."""

NEWEST = 452
"""The last call that was looked at (fchmodat2). From 424 on, numbers are the same on all machines."""

OTHER_PROCESSES = {
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272),
    "pidfd_getfd": (438, 438), "process_madvise": (440, 440), "process_mrelease": (448, 448),
    "move_pages": (279, 239), "migrate_pages": (256, 238), "ioprio_set": (251, 30),
}  # fmt: skip

NAMESPACES = {
    "unshare": (272, 97), "setns": (308, 268), "chroot": (161, 51), "pivot_root": (155, 41), "mount": (165, 40),
    "umount2": (166, 39), "move_mount": (429, 429), "open_tree": (428, 428), "fsopen": (430, 430),
    "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433), "mount_setattr": (442, 442),
    "name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265),
}  # fmt: skip

UNCOUNTED_MEMORY = {
    "memfd_create": (319, 279), "memfd_secret": (447, 447), "shmget": (29, 194), "shmat": (30, 196),
    "shmctl": (31, 195), "msgget": (68, 186), "semget": (64, 190), "mq_open": (240, 180), "io_setup": (206, 0),
    "keyctl": (250, 219), "add_key": (248, 217), "request_key": (249, 218),
    "landlock_create_ruleset": (444, 444), "landlock_add_rule": (445, 445), "landlock_restrict_self": (446, 446),
    "seccomp": (317, 277), "fanotify_init": (300, 262), "fanotify_mark": (301, 263), "mbind": (237, 235),
    "set_mempolicy": (238, 237), "set_mempolicy_home_node": (450, 450), "modify_ldt": (154, None),
}  # fmt: skip
"""Calls that make what belongs to no folder and to no process that could be counted."""

MUCH_ATTACKED = {
    "bpf": (321, 280), "userfaultfd": (323, 282), "perf_event_open": (298, 241), "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
}  # fmt: skip

OF_THE_MACHINE = {
    "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106), "create_module": (174, None),
    "query_module": (178, None), "kexec_load": (246, 104), "kexec_file_load": (320, 294), "reboot": (169, 142),
    "acct": (163, 89), "swapon": (167, 224), "swapoff": (168, 225), "quotactl": (179, 60), "quotactl_fd": (443, 443),
    "nfsservctl": (180, 42), "lookup_dcookie": (212, 18), "clock_settime": (227, 112), "settimeofday": (164, 170),
    "clock_adjtime": (305, 266), "adjtimex": (159, 171), "iopl": (172, None), "ioperm": (173, None),
    "uselib": (134, None), "ustat": (136, None), "sysfs": (139, None), "_sysctl": (156, None), "vhangup": (153, 58),
    "syslog": (103, 116), "sethostname": (170, 161), "setdomainname": (171, 162), "sched_setaffinity": (203, 122),
}  # fmt: skip
"""Clocks, modules, swap and the like; `sched_setaffinity` because the cores of a command are chosen for it."""

NEEDS_A_CONTROL_GROUP = {
    "epoll_create": (213, None), "epoll_create1": (291, 20), "inotify_init": (253, None), "inotify_init1": (294, 26),
    "splice": (275, 76), "tee": (276, 77), "vmsplice": (278, 75), "sendfile": (40, 71),
}  # fmt: skip
"""A handle of the first holds any number of kernel objects, and a byte that the others move keeps a page of memory;
only a control group counts either."""

BY_ARGUMENT = {
    "clone": (56, 220), "clone3": (435, 435), "prlimit64": (302, 261), "setpriority": (141, 140),
    "sched_setscheduler": (144, 119), "sched_setparam": (142, 118), "sched_setattr": (314, 274), "socket": (41, 198),
    "socketpair": (53, 199), "setsockopt": (54, 208), "fcntl": (72, 25), "prctl": (157, 167),
    "personality": (135, 92), "mmap": (9, 222), "ioctl": (16, 29),
}  # fmt: skip
