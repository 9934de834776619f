"""A crash and its recovery: what two workers and the store do, one below the other, over time."""

from __future__ import annotations

from typing import NamedTuple

from tools.pictures.svg import arrow, drawing, text

WIDTH, HEIGHT = 860, 380
LEFT, RIGHT = 110, 840
#: The middle of each lane.
LANES = {"worker A": 90, "store": 190, "worker B": 290}
BAR = 34


class Bar(NamedTuple):
    """What a lane does between two moments."""

    lane: str
    begin: float
    end: float
    words: str
    kind: str


class Step(NamedTuple):
    """What is written or read at a moment, from one lane to another."""

    at: float
    before: str
    after: str
    words: str


BARS = [
    Bar("worker A", 0, 250, "extract, attempt 1", "open"),
    Bar("worker A", 250, 272, "✕", "bad"),
    Bar("store", 10, 395, "lease of A", "still"),
    Bar("store", 450, 620, "lease of B", "still"),
    Bar("store", 620, 730, "result", "good"),
    Bar("worker B", 450, 620, "extract, attempt 2", "open"),
]
STEPS = [
    Step(10, "worker A", "store", "claim"),
    Step(90, "worker A", "store", "intent"),
    Step(180, "worker A", "store", "answer"),
    Step(395, "worker B", "store", "sweep"),
    Step(450, "worker B", "store", "claim"),
    Step(530, "store", "worker B", "answer"),
    Step(620, "worker B", "store", "commit"),
]


def draw() -> str:
    shapes = []
    for name, y in LANES.items():
        shapes += [text(16, y + 5, name), f'<path class="line" d="M{LEFT} {y}H{RIGHT}" stroke-dasharray="2 5"/>']
    for bar in BARS:
        x, y = LEFT + bar.begin, LANES[bar.lane]
        width = bar.end - bar.begin
        shapes.append(
            f'<rect class="{bar.kind}" x="{x:g}" y="{y - BAR / 2:g}" width="{width:g}" height="{BAR}" rx="5"/>'
        )
        shapes.append(text(x + width / 2, y + 5, bar.words, anchor="middle"))
    for step in STEPS:
        begin, end = LANES[step.before], LANES[step.after]
        down = 1 if end > begin else -1
        x = LEFT + step.at
        shapes.append(arrow([(x, begin + down * BAR / 2), (x, end - down * BAR / 2)]))
        shapes.append(text(x + 6, (begin + end) / 2 + 4, step.words, kind="small"))
    silence = [
        text(LEFT + 262, 58, "kill -9", kind="small", anchor="middle"),
        text(LEFT + 325, 142, "no heartbeat for a lease", kind="small", anchor="middle"),
        text(
            16,
            362,
            "The paid call is made once: attempt 2 reads the recorded answer, and nobody had to do anything.",
            kind="small",
        ),
        text(16, 30, "A worker is killed between a paid call and its result"),
    ]
    return drawing(WIDTH, HEIGHT, "A worker is killed, and another one takes over its work", [*shapes, *silence])
