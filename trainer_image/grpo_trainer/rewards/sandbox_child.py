"""Shuts its own process in, then runs a program: `python -I sandbox_child.py <descriptor of the task>`.

What holds afterwards, also in an unprivileged container: limits of time, memory and file size; no new process or
program, no socket but pairs, no signal or look into another process (seccomp); no file but those of the Python
installation to read and those of its own directory (Landlock). Standard library only.
"""

import ctypes
import json
import os
import platform
import resource
import struct
import sys

CANNOT = 96
_PR_SET_PDEATHSIG, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 1, 22, 38
_libc = ctypes.CDLL(None, use_errno=True)

# Numbers of the kernel's calls on x86-64 (arch/x86/entry/syscalls/syscall_64.tbl).
_ARCHITECTURE = 0xC000003E
_X32 = 0x40000000
_CLONE, _CLONE3 = 56, 435
_TO_ITSELF = {"kill": 62, "tkill": 200, "tgkill": 234}
_REFUSED = {
    "socket": 41,
    "shmget": 29,
    "fork": 57,
    "vfork": 58,
    "execve": 59,
    "ptrace": 101,
    "rt_sigqueueinfo": 129,
    "pivot_root": 155,
    "chroot": 161,
    "mount": 165,
    "umount2": 166,
    "add_key": 248,
    "request_key": 249,
    "keyctl": 250,
    "unshare": 272,
    "rt_tgsigqueueinfo": 297,
    "perf_event_open": 298,
    "prlimit64": 302,
    "setns": 308,
    "process_vm_readv": 310,
    "process_vm_writev": 311,
    "memfd_create": 319,
    "bpf": 321,
    "execveat": 322,
    "userfaultfd": 323,
    "pidfd_send_signal": 424,
    "io_uring_setup": 425,
    "pidfd_open": 434,
    "pidfd_getfd": 438,
}

_LANDLOCK_CREATE, _LANDLOCK_ADD_RULE, _LANDLOCK_RESTRICT = 444, 445, 446
_READ_FILE, _READ_DIR = 1 << 2, 1 << 3


def main() -> None:
    descriptor = int(sys.argv[1])
    with os.fdopen(descriptor) as file:
        task = json.load(file)
    silent = os.open(os.devnull, os.O_WRONLY)
    try:
        shut_in(task)
    except (OSError, RuntimeError) as error:
        print(error, file=sys.stderr, flush=True)
        os._exit(CANNOT)
    os.dup2(silent, 2)  # nobody reads the program's errors, and a full pipe would stop it
    check, mark = task["check"], task["mark"]
    namespace = {"__name__": "__main__", "__builtins__": __builtins__}
    exec(compile(task["program"], "program.py", "exec"), namespace)
    if check:
        exec(compile(check, "check.py", "exec"), namespace)
    sys.stdout.flush()
    os.write(1, mark.encode())


def shut_in(task: dict) -> None:
    """Raises RuntimeError or OSError where something of the sandbox cannot be had."""
    if platform.machine() != "x86_64":
        raise RuntimeError(f"programs are run on x86-64 only, and this node is {platform.machine()}")
    seconds = int(task["seconds"]) + 1
    for kind, limit in (
        (resource.RLIMIT_CPU, seconds),
        (resource.RLIMIT_AS, task["memory"]),
        (resource.RLIMIT_FSIZE, task["file_size"]),
        (resource.RLIMIT_NOFILE, 64),
        (resource.RLIMIT_CORE, 0),
    ):
        hard = resource.getrlimit(kind)[1]
        limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(kind, (limit, limit))
    _prctl(_PR_SET_PDEATHSIG, 9)
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    _keep_from_files(task["directory"], task["need_landlock"])
    _refuse_calls()


def _prctl(option: int, value: int, more: object = 0) -> None:
    if _libc.prctl(option, value, more, 0, 0):
        raise OSError(ctypes.get_errno(), f"prctl({option}): {os.strerror(ctypes.get_errno())}")


def _call(number: int, *arguments: object) -> int:
    result = int(_libc.syscall(number, *arguments))
    if result < 0:
        raise OSError(ctypes.get_errno(), f"system call {number}: {os.strerror(ctypes.get_errno())}")
    return result


def _keep_from_files(directory: str, needed: bool) -> None:
    """Landlock (Documentation/userspace-api/landlock.rst): what no rule allows is refused."""
    version = int(_libc.syscall(_LANDLOCK_CREATE, None, 0, 1))
    if version < 1:
        if needed:
            raise RuntimeError(
                "the kernel of this node has no Landlock, without which a program could read and write the trainer's "
                "files: run on nodes with Linux 5.13 or later and Landlock enabled, or set "
                "builtin.params.landlock: if_available"
            )
        return
    # Rights that later versions added: to link across directories, truncate, control devices; TCP; signals.
    files = (1 << 13) - 1 | (version >= 2) << 13 | (version >= 3) << 14 | (version >= 5) << 15
    attributes = struct.pack("QQQ", files, 3 if version >= 4 else 0, 3 if version >= 6 else 0)
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    rules = _call(_LANDLOCK_CREATE, attributes, size, 0)
    read = _READ_FILE | _READ_DIR
    places = dict.fromkeys(("/usr", "/lib", "/lib64", sys.prefix, sys.base_prefix, *sys.path), read)
    places |= dict.fromkeys(("/etc/ld.so.cache", "/etc/localtime", "/dev/urandom", "/dev/null"), _READ_FILE)
    places[directory] = files
    for path, rights in places.items():
        if not os.path.exists(path) or os.path.realpath(path) == "/":
            continue
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
        if not os.path.isdir(path):
            rights &= _READ_FILE
        _call(_LANDLOCK_ADD_RULE, rules, 1, struct.pack("=Qi", rights, place), 0)
        os.close(place)
    _call(_LANDLOCK_RESTRICT, rules, 0)
    os.close(rules)


def _refuse_calls() -> None:
    """A seccomp filter (Documentation/userspace-api/seccomp_filter.rst) in classic BPF."""
    load, equal, at_least, any_bit, answer = 0x20, 0x15, 0x35, 0x45, 0x06
    allow, kill, not_permitted, not_implemented = 0x7FFF0000, 0x80000000, 0x00050001, 0x00050026
    number, architecture, first_argument = 0, 4, 16
    own = os.getpid()
    program: list[tuple[int, int, int, int]] = [
        (load, 0, 0, architecture),
        (equal, 1, 0, _ARCHITECTURE),
        (answer, 0, 0, kill),
        (load, 0, 0, number),
        (at_least, 0, 1, _X32),
        (answer, 0, 0, not_permitted),
        (equal, 0, 1, _CLONE3),  # its flags are out of a filter's sight; without it the C library takes clone
        (answer, 0, 0, not_implemented),
    ]
    for refused in _REFUSED.values():
        program += [(equal, 0, 1, refused), (answer, 0, 0, not_permitted)]
    for signal in _TO_ITSELF.values():
        program += [
            (equal, 0, 4, signal),
            (load, 0, 0, first_argument),
            (equal, 1, 0, own),
            (answer, 0, 0, not_permitted),
            (answer, 0, 0, allow),
        ]
    program += [
        (equal, 0, 4, _CLONE),
        (load, 0, 0, first_argument),
        (any_bit, 1, 0, 0x00010000),  # CLONE_THREAD
        (answer, 0, 0, not_permitted),
        (answer, 0, 0, allow),
        (answer, 0, 0, allow),
    ]
    text = b"".join(struct.pack("HBBI", *instruction) for instruction in program)
    buffer = ctypes.create_string_buffer(text)
    _prctl(_PR_SET_SECCOMP, 2, ctypes.byref(_Filter(len(program), ctypes.addressof(buffer))))


class _Filter(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]


if __name__ == "__main__":
    main()
