"""What people do: the commands that leave an entry in the audit."""

from __future__ import annotations

from collections.abc import Mapping

#: By the name of the event of a single act: its command.
COMMANDS: Mapping[str, str] = {
    "paused": "pause",
    "resumed": "resume",
    "tuned": "tune",
    "resolved": "resolve",
    "look_requested": "discover",
    "action_stopped": "stop",
    "sums_repaired": "repair",
}
#: The kinds of actions on many items.
KINDS = ("retry", "cancel", "forget", "restore", "delete", "resolve", "reprocess", "accept")
VERBS = tuple(sorted({*COMMANDS.values(), *KINDS}))
