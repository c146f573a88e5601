"""Installs the Debian packages whose commands are missing.

``python3 -m local_cluster.packages compiler`` and ``... tests`` install what a source distribution and the tests need.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Sequence
from pathlib import Path

# A command or file that shows the package to be there -> the package.
NODE_PACKAGES = {
    "runc": "runc",
    "/usr/lib/cni/ptp": "containernetworking-plugins",
    "nft": "nftables",
    "ip": "iproute2",
    "mount": "mount",
    "openssl": "openssl",
    "/etc/ssl/certs/ca-certificates.crt": "ca-certificates",
}
# What building the job's images takes.
IMAGE_PACKAGES = {"buildah": "buildah", "debootstrap": "debootstrap"}
# A source distribution below reasoning-gym is compiled for the trainer's environment outside its image.
COMPILER_PACKAGES = {
    "cc": "gcc",
    "/usr/include/stdio.h": "libc6-dev",
    f"{sysconfig.get_paths()['include']}/Python.h": "python3-dev",
}
# promtool checks the alerts.
TEST_PACKAGES = {"promtool": "prometheus"}


def missing(wanted: dict[str, str]) -> list[str]:
    """Packages of ``wanted`` whose command (on PATH or in /usr/sbin) or file does not exist."""
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    return [
        package
        for probe, package in wanted.items()
        if not (Path(probe).exists() if probe.startswith("/") else shutil.which(probe, path=path))
    ]


def install(names: Sequence[str], *, why: str) -> None:
    """Install Debian packages with apt-get; exits with the repair when this user or system cannot."""
    if not names:
        return
    listed = " ".join(names)
    if not shutil.which("apt-get"):
        raise SystemExit(
            f"Missing {why}: {listed} (Debian's package names). "
            "Install them with this system's package manager, then try again."
        )
    if os.geteuid() != 0:
        raise SystemExit(f"Missing {why}: {listed}. Run as root, or first: sudo apt-get install {listed}")
    print(f"Installing Debian packages {why}: {listed} (once) ...", flush=True)
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    # Another apt-get may hold the lock for a while, as on a freshly booted machine: wait for it.
    apt = ["apt-get", "-qq", "-o", "DPkg::Lock::Timeout=300"]
    for arguments in (["update"], ["install", "-y", "--no-install-recommends", *names]):
        for _ in range(60):
            result = subprocess.run(
                [*apt, *arguments], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
            # The timeout above does not cover the lock on the package lists.
            if result.returncode == 0 or "/var/lib/apt/lists/lock" not in result.stdout:
                break
            time.sleep(5)
        if result.returncode:
            raise SystemExit(f"`{' '.join(['apt-get', *arguments])}` failed:\n{result.stdout[-2000:]}")


if __name__ == "__main__":
    _GROUPS = {"compiler": COMPILER_PACKAGES, "tests": TEST_PACKAGES}
    for _group in sys.argv[1:]:
        install(missing(_GROUPS[_group]), why=f"needed ({_group})")
