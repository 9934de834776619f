"""Made-up sentences of a small town's paper, the same for the same seed."""

from __future__ import annotations

import random

#: By section: who or what, does what, to what, and where or when.
VOCABULARY: dict[str, tuple[tuple[str, ...], ...]] = {
    "harbour": (
        ("the ferry", "the harbour office", "the pilot boat", "a trawler", "the dredger", "the lighthouse crew"),
        ("postponed", "inspected", "repaired", "welcomed", "weighed", "towed"),
        ("the northern pier", "two fishing boats", "the morning crossing", "a cargo of timber", "the old crane"),
        ("in thick fog", "before high tide", "at the outer quay", "after the storm", "with the evening tide"),
    ),
    "council": (
        ("the council", "the finance committee", "the planning office", "the town clerk", "the residents' meeting"),
        ("approved", "rejected", "discussed", "delayed", "published"),
        (
            "the budget for schools",
            "a new bus lane",
            "the library roof",
            "the market square plan",
            "the housing report",
        ),
        (
            "after a long debate",
            "by a narrow majority",
            "without objections",
            "for the second time",
            "in an open session",
        ),
    ),
    "weather": (
        ("a cold front", "the storm", "the river gauge", "the weather station", "a warm wind"),
        ("reached", "flooded", "recorded", "dried out", "surprised"),
        ("the lower fields", "a record of rainfall", "the coastal road", "the vineyards", "the night temperature"),
        ("during the night", "for the third day", "within an hour", "earlier than forecast", "along the coast"),
    ),
    "markets": (
        ("the fish auction", "the dairy", "the timber yard", "the weekly market", "the cooperative"),
        ("raised", "lowered", "sold", "exported", "ordered"),
        ("the price of herring", "forty barrels of cider", "a load of oak", "more wool than ever", "its autumn stock"),
        ("despite high costs", "to buyers abroad", "within a morning", "for the first time", "ahead of the holidays"),
    ),
    "culture": (
        ("the museum", "the choir", "the little theatre", "the film club", "the school orchestra"),
        ("opened", "rehearsed", "restored", "performed", "borrowed"),
        ("a show of old maps", "a cantata", "the stage curtain", "a silent film", "a collection of clocks"),
        ("before a full house", "in the old chapel", "with a new organ", "through the winter", "free of charge"),
    ),
    "sport": (
        ("the rowing club", "the handball team", "the sailing school", "the marathon", "the youth league"),
        ("won", "lost", "moved", "celebrated", "trained for"),
        ("the regional final", "the home match", "the long regatta", "its hundredth race", "the spring season"),
        ("by a single point", "against the wind", "in front of two thousand", "on the new course", "in extra time"),
    ),
}
SECTIONS = tuple(VOCABULARY)
_CLOSING = (
    "Nobody was hurt.",
    "Work goes on next week.",
    "The reasons are not known yet.",
    "A report is expected in spring.",
    "The town hall answers questions.",
    "It was the best result in years.",
    "Some were disappointed.",
)


def _sentence(section: str, chance: random.Random) -> str:
    who, does, what, when = (chance.choice(words) for words in VOCABULARY[section])
    text = f"{who} {does} {what} {when}."
    return text[0].upper() + text[1:]


def fake_headline(section: str, chance: random.Random) -> str:
    who, does, what, _ = (chance.choice(words) for words in VOCABULARY[section])
    text = f"{who.removeprefix('the ').removeprefix('a ')} {does} {what}"
    return text[0].upper() + text[1:]


def fake_paragraph(section: str, chance: random.Random) -> str:
    sentences = [_sentence(section, chance) for _ in range(chance.randint(2, 4))]
    # Now and then the paper looks over its shoulder.
    if chance.random() < 0.2:
        sentences.append(_sentence(chance.choice(SECTIONS), chance))
    return " ".join([*sentences, chance.choice(_CLOSING)])
