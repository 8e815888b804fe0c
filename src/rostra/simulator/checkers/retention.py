"""Retention by size keeps at least that many bytes; without retention nothing is removed."""

from __future__ import annotations

from rostra.simulator.history import History


def check(history: History) -> list[str]:
    found: list[str] = []
    for final in history.final.values():
        settings = final.settings
        where = f"{final.name}/{final.partition}"
        if final.first == 0 or settings.retention_ms:
            continue
        if not settings.retention_bytes:
            found.append(f"{where} begins at {final.first} although nothing may expire")
        elif settings.compaction:
            # Compaction may leave fewer bytes.
            continue
        elif final.complete and final.damaged_at is None and final.bytes < settings.retention_bytes:
            found.append(f"{where} holds {final.bytes} bytes; retention keeps {settings.retention_bytes}")
    return found
