"""Made-up, varied prose about eight trades, for books of any length. The same seed gives the same text.

Nothing here is a fact, and no person is named.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import NamedTuple


class Trade(NamedTuple):
    title: str
    things: tuple[str, ...]
    doings: tuple[str, ...]
    qualities: tuple[str, ...]
    places: tuple[str, ...]


def _trade(title: str, things: str, doings: str, qualities: str, places: str) -> Trade:
    return Trade(title, *(tuple(words.split(", ")) for words in (things, doings, qualities, places)))


TRADES: Mapping[str, Trade] = {
    "bees": _trade(
        "The Keeping of Bees",
        "the hive, the queen, the comb, the swarm, the honey, the smoker, the brood, the wax, the drone, the frame",
        "gather pollen, seal the cells, guard the entrance, follow the scent, cluster for warmth, ripen the "
        "nectar, leave with the old queen",
        "golden, restless, heavy with nectar, sweet, orderly, drowsy",
        "the orchard, the heath, the apiary, the lime avenue, the clover field",
    ),
    "harbours": _trade(
        "Harbours of the North",
        "the pilot boat, the quay, the tide, the breakwater, the lighthouse, the anchor, the hawser, the "
        "channel, the buoy, the cargo",
        "wait for the flood, run aground on the bar, take soundings, drop anchor, follow the leading lights, "
        "drift with the ebb, unload at night",
        "salt-stained, sheltered, tidal, fog-bound, deep, crowded with masts",
        "the estuary, the outer basin, the roadstead, the dry dock, the customs house",
    ),
    "bread": _trade(
        "Bread and Its Ovens",
        "the dough, the leaven, the oven, the crust, the flour, the loaf, the peel, the kneading trough, the "
        "crumb, the yeast",
        "rise overnight, fold the dough, bank the fire, bake until hollow, cool on the rack, feed the leaven, "
        "sift the flour",
        "sour, warm, floury, blistered, coarse, well fermented",
        "the bakehouse, the mill, the village oven, the pantry, the market stall",
    ),
    "clocks": _trade(
        "Clocks and Their Keepers",
        "the pendulum, the escapement, the mainspring, the dial, the gear train, the hour hand, the weight, "
        "the chime, the balance wheel, the bezel",
        "lose a minute a week, strike the hour, swing in a vacuum, wear at the pivots, run down by Sunday, "
        "keep sidereal time, compensate for heat",
        "steady, finely cut, slow, oiled, silent, of brass",
        "the belfry, the watchmaker's bench, the observatory, the town hall, the ship's cabin",
    ),
    "mountains": _trade(
        "Paths in High Mountains",
        "the pass, the glacier, the rope, the cairn, the scree, the ridge, the avalanche, the hut, the "
        "summit, the crevasse",
        "rise before dawn, cross the snowfield, belay the second, wait out the storm, lose the path in cloud, "
        "descend by the gully, melt in August",
        "windswept, steep, frozen, treeless, pathless, dazzling",
        "the col, the upper valley, the north face, the moraine, the alp",
    ),
    "stars": _trade(
        "Watching the Stars",
        "the telescope, the comet, the planet, the eyepiece, the eclipse, the constellation, the star chart, "
        "the mirror, the orbit, the meridian",
        "rise after midnight, cross the meridian, dim before dawn, return after decades, wobble in the "
        "eyepiece, cast a faint shadow, drift out of the field",
        "faint, double, red, unblinking, distant, brightening",
        "the dome, the dark hillside, the southern sky, the zodiac, the roof",
    ),
    "salt": _trade(
        "Salt and the Salt Roads",
        "the brine, the salt pan, the evaporation house, the rake, the mule train, the tax, the mine, the "
        "crystal, the barrel, the sluice",
        "boil down the brine, rake the crystals, pay the toll, load the mules, flood the pans, dry in the "
        "wind, preserve the herring",
        "white, bitter, coarse-grained, damp, heavily taxed, sun-dried",
        "the salt marsh, the mine gallery, the toll gate, the coast road, the warehouse",
    ),
    "bridges": _trade(
        "How Bridges Stand",
        "the arch, the pier, the keystone, the cable, the truss, the foundation, the abutment, the rivet, the "
        "span, the deck",
        "carry the thrust to the bank, settle into the gravel, sway in the gale, span the river in one leap, "
        "expand in summer, bear the load, wash out in flood",
        "slender, arched, of stone, well founded, rusting, suspended",
        "the ford, the gorge, the river bank, the narrows, the ferry landing",
    ),
}

#: What every trade knows: the same in all books, so that books have something to say to each other.
COMMON = (
    "The weather decides more than anyone likes to admit, and a hard winter undoes the plans of a whole year.",
    "Apprentices learned by watching, and were paid in board and lodging until their seventh year was over.",
    "Prices rose when the war closed the roads, and they did not come down again when the roads were opened.",
    "Every account book tells of debts, and few of them tell that a debt was paid.",
    "What is written in the manuals is rarely what was done; the hand knows more than the page.",
    "A mistake made in the morning is cheap; the same mistake made in the evening costs the day.",
    "The guild kept its secrets well, until cheaper goods from abroad made them worthless.",
    "Women did much of this work, and the registers do not name them.",
)

_FRAMES = (
    "{Thing} is {quality}, and {thing2} is not.",
    "In {place} they {doing}, and nobody thinks it strange.",
    "When {thing} is {quality}, it is time to see to {thing2}.",
    "Whoever has seen {thing} in {place} knows why {thing2} matters.",
    "It is said that {thing} must never be left alone with {thing2}; the reason is {quality} weather.",
    "They {doing}, and later, if there is time, they {doing2}.",
    "Of {thing} little need be said, except that it was {quality} for most of the year.",
    "Between {place} and {place2} there is half a day's walk, and {thing} is carried all the way.",
    "An old rule holds that those who {doing} should not also {doing2}.",
    "{Thing}, {thing2} and {thing3}: without these nothing can be begun in {place}.",
    "The first sign is that {thing} becomes {quality}; the second comes too late.",
    "It took {number} years before {thing} was as {quality} as it is now.",
    "On {number} days of the year they {doing}; on the others they mend {thing}.",
    "A visitor to {place} would notice {thing} first, and {thing2} only on leaving.",
)
_HEADS = (
    "Of {thing}",
    "In {place}",
    "What is {quality}",
    "{Thing} and {thing2}",
    "The year {number}",
    "Before they {doing}",
)


class FakeWriter:
    """Writes about one trade. The first letters of sentences are large, the rest is chance."""

    def __init__(self, trade: str, seed: int) -> None:
        self.trade = TRADES[trade]
        self.chance = random.Random(f"{trade} {seed}")

    def heading(self) -> str:
        return self._fill(self.chance.choice(_HEADS))

    def sentence(self) -> str:
        return self.chance.choice(COMMON) if self.chance.random() < 0.06 else self._fill(self.chance.choice(_FRAMES))

    def paragraph(self, sentences: int = 0) -> str:
        return " ".join(self.sentence() for _ in range(sentences or self.chance.randint(3, 8)))

    def row(self) -> tuple[str, str, str]:
        trade, chance = self.trade, self.chance
        return (
            chance.choice(trade.things).removeprefix("the "),
            chance.choice(trade.qualities),
            str(chance.randint(2, 900)),
        )

    def _fill(self, frame: str) -> str:
        trade, chance = self.trade, self.chance
        things, doings, places = (
            chance.sample(trade.things, 3),
            chance.sample(trade.doings, 2),
            chance.sample(trade.places, 2),
        )
        text = frame.format(
            Thing=things[0].capitalize(),
            thing=things[0],
            thing2=things[1],
            thing3=things[2],
            doing=doings[0],
            doing2=doings[1],
            place=places[0],
            place2=places[1],
            quality=chance.choice(trade.qualities),
            number=chance.randint(3, 90),
        )
        return text[0].upper() + text[1:]
