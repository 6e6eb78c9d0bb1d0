"""Methods that do to a sweep what methods sometimes do. Worker processes import them by this module's name."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fnll.federation import World
from fnll.local import Training
from fnll.methods.fedavg import FedAvg
from fnll.types import Client


@dataclass(frozen=True, kw_only=True)
class Choosy(FedAvg):
    """Declines every scenario."""

    def decline(self, world: World) -> str | None:
        return f"{len(world.sizes)} clients are not enough"


@dataclass(frozen=True, kw_only=True)
class Mortal(FedAvg):
    """Its process is killed, as for want of memory, until `lives` files lie in `graveyard`."""

    graveyard: str
    lives: int

    def train(self, client: Client, **message: Any) -> Training:
        graves = Path(self.graveyard)
        graves.mkdir(exist_ok=True)
        buried = len(list(graves.iterdir()))
        if buried < self.lives:
            (graves / str(buried)).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().train(client, **message)
