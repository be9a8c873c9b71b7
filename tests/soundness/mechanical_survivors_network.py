"""As `mechanical_survivors.py`, for what `network_fuzz.py` judges: the rules of networks, the passes and the relaxations."""

from __future__ import annotations

from mechanical_survivors import Argued

ARGUED: list[Argued] = []
