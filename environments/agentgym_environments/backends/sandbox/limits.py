"""Limits of a sandbox."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

SHARED_MB = 16
"""Size of /dev/shm."""


class SandboxLimits(BaseModel):
    """One session's share. Where each limit comes from, README.md says."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    memory_mb: int = Field(512, ge=32)
    """Memory of each process and, together, of all of them, with what the kernel holds for them."""
    processes: int = Field(64, ge=2)
    """Processes and threads at a time."""
    cpus: float = Field(1.0, gt=0)
    """Cores. With bubblewrap, processes run on that many whole ones."""
    disk_mb: int = Field(64, ge=1)
    """Size of /work, of /tmp and of the largest file; both folders are in memory."""
    files: int = Field(20_000, ge=100)
    """Files in each of them."""
    output_kb: int = Field(64, ge=1)
    """Output that is kept of a command: its first and its last half."""

    @property
    def host_mb(self) -> int:
        """Memory that the sandbox takes of the machine at most: processes, /work, /tmp and /dev/shm, and 64 MB for the
        supervisor and for what is filled before it looks again."""
        return self.memory_mb + 2 * self.disk_mb + SHARED_MB + 64
