"""Generated news sentences and headlines in the style of Gigaword.

Text is lower case, tokens are separated by spaces, digits are #, rare names UNK, brackets -lrb- and -rrb-. A headline
states who did what; it omits source, time and background, and reorders the words, so the first words of a sentence
are not its headline. Headlines differ across splits in more than numbers.
"""

import re
from collections.abc import Callable, Iterator
from functools import partial

from seqarena.common.data.counter import Draws
from seqarena.common.data.held_out import draw_for_split

COUNTRIES = ("austria", "belgium", "brazil", "canada", "chile", "cuba", "denmark", "egypt", "finland",
             "france", "greece", "hungary", "iceland", "india", "iran", "ireland", "italy", "kenya",
             "mexico", "nepal", "nigeria", "norway", "peru", "poland", "portugal", "russia", "spain",
             "sweden", "turkey", "vietnam")  # fmt: skip
CITIES = ("aleppo", "baku", "bergen", "cairo", "dakar", "delhi", "dublin", "hanoi", "harare", "izmir",
          "jakarta", "karachi", "lagos", "lima", "lisbon", "madrid", "manila", "milan", "minsk", "oslo",
          "porto", "quito", "riga", "rome", "seoul", "sofia", "tunis", "turin", "vienna", "warsaw")  # fmt: skip
BEGUN = ("ada", "bel", "cor", "dan", "esk", "fal", "gor", "hal", "ilm", "jor", "kal", "lor", "mar", "nor", "ost", "pal",
         "ros", "sal", "tor", "vel")  # fmt: skip
ENDED = ("berg", "dahl", "ero", "ford", "gren", "ic", "ko", "lund", "man", "nen", "off", "olo", "quist", "rup", "sen",
         "ska", "stra", "ton", "vic", "wen")  # fmt: skip
PEOPLE = tuple(f"{first}{last}" for first in BEGUN for last in ENDED)
"""Large enough that a model must learn to copy names that occur only a few times."""
FIRMS = ("acme", "borealis", "cobalt", "delta", "everest", "falcon", "granite", "helix", "ivory",
         "juniper", "kestrel", "lotus", "meridian", "nova", "orion", "pioneer")  # fmt: skip
GOODS = ("cars", "copper", "corn", "engines", "fish", "gas", "grain", "oil", "phones", "planes", "rice",
         "ships", "steel", "sugar", "tea", "wheat")  # fmt: skip
TOPICS = ("air", "border", "climate", "defence", "fishing", "health", "nuclear", "tax", "trade", "visa", "water")
VEHICLES = ("bus", "ferry", "plane", "train", "truck")
EVENTS = ("cup", "marathon", "masters", "open", "regatta", "tour")
ROUNDS = ("final", "semifinal", "quarterfinal")
BUILDINGS = ("airports", "banks", "embassies", "hospitals", "mines", "ports", "schools", "universities")
REASONS = ("fighting", "flooding", "protests", "strikes", "storms")
DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
ADJECTIVES = ("big", "giant", "leading", "local", "major", "state-owned", "struggling", "troubled")
SPEAKERS = ("a spokesman", "an official", "local media", "officials", "police", "state radio",
            "the government", "witnesses")  # fmt: skip
AGENCIES = ("afp", "xinhua")
UNKNOWN_NAMES = 12
"""One name in this many is UNK, both in the text and in its headline."""
NUMBER = re.compile("#+")


class Story:
    """Draws the names and numbers of a sentence, once each for the text and its headline."""

    def __init__(self, draws: Draws) -> None:
        self.draws = draws

    def name(self, names: tuple[str, ...]) -> str:
        """Returns one of ``names``, or UNK at the rate of ``UNKNOWN_NAMES``."""
        drawn = self.draws.one_of(names)
        return "UNK" if self.draws.below(UNKNOWN_NAMES) == 0 else drawn

    def two(self, names: tuple[str, ...]) -> tuple[str, str]:
        """Returns two different names."""
        first, second = self.draws.some_of(names, 2)
        return first, second

    def number(self) -> str:
        """Returns a number of one to three digits, each written as #."""
        return "#" * (1 + self.draws.below(3))

    def attribution(self) -> str:
        """Returns the source and day of a statement."""
        return f"{self.draws.one_of(SPEAKERS)} said {self.draws.one_of(DAYS)}"


def crash(story: Story) -> tuple[str, str]:
    """A crash. The headline starts with the number of dead and the country, which are apart in the text."""
    killed, hurt = story.number(), story.number()
    vehicle, city, country = story.draws.one_of(VEHICLES), story.name(CITIES), story.draws.one_of(COUNTRIES)
    text = f"a {vehicle} crashed near {city} in {country} , killing at least {killed} people and injuring {hurt} more"
    return f"{text} , {story.attribution()} .", f"{killed} killed in {country} {vehicle} crash"


def order(story: Story) -> tuple[str, str]:
    """A firm's order of goods from another firm."""
    firm, country, goods = story.name(FIRMS), story.draws.one_of(COUNTRIES), story.draws.one_of(GOODS)
    count, adjective = story.number(), story.draws.one_of(ADJECTIVES)
    text = f"{adjective} {country} company {firm} will buy {count} million dollars worth of {goods} from"
    seller = story.name(FIRMS)
    return f"{text} {seller} next year , {story.attribution()} .", f"{firm} to buy {goods} from {seller}"


def match(story: Story) -> tuple[str, str]:
    """A match: winner, loser and round; the headline omits the countries."""
    (winner, loser), (one, other) = story.two(PEOPLE), story.two(COUNTRIES)
    event, stage, city = story.draws.one_of(EVENTS), story.draws.one_of(ROUNDS), story.name(CITIES)
    text = f"{winner} of {one} beat {loser} of {other} #-# , #-# on {story.draws.one_of(DAYS)}"
    return f"{text} to reach the {stage} of the {city} {event} .", f"{winner} beats {loser} to reach {city} {stage}"


def closure(story: Story) -> tuple[str, str]:
    """A government's order; the headline names the country instead of the government."""
    country, buildings, reason = (story.draws.one_of(each) for each in (COUNTRIES, BUILDINGS, REASONS))
    city = story.name(CITIES)
    text = (
        f"the government of {country} announced on {story.draws.one_of(DAYS)} the closure of all {buildings} in {city}"
    )
    return f"{text} because of {reason} in the region .", f"{country} closes {city} {buildings} over {reason}"


def shares(story: Story) -> tuple[str, str]:
    """Share prices: the headline copies the direction and moves the city to the front."""
    city, goods, way = story.name(CITIES), story.draws.one_of(GOODS), story.draws.one_of(("higher", "lower"))
    text = f"shares closed #.# percent {way} in {city} -lrb- {story.draws.one_of(AGENCIES)} -rrb- on"
    return (
        f"{text} {story.draws.one_of(DAYS)} as prices of {goods} changed , dealers said .",
        f"{city} shares close {way}",
    )


def treaty(story: Story) -> tuple[str, str]:
    """A treaty: parties and topic; the headline omits the minister's name."""
    (one, other), topic, city = story.two(COUNTRIES), story.draws.one_of(TOPICS), story.name(CITIES)
    minister = story.name(PEOPLE)
    text = f"foreign minister {minister} of {one} arrived in {city} on {story.draws.one_of(DAYS)} to sign a"
    return f"{text} {topic} agreement with {other} , {story.attribution()} .", f"{one} and {other} to sign {topic} pact"


def visit(story: Story) -> tuple[str, str]:
    """A visit; the text names the visitor last, the headline first."""
    host, guest = story.two(COUNTRIES)
    person, topic = story.name(PEOPLE), story.draws.one_of(TOPICS)
    text = (
        f"{host} is ready for talks on {topic} issues , {story.attribution()} , before a visit of {guest} 's president"
    )
    return f"{text} {person} -lrb- his first in # years -rrb- .", f"{person} to visit {host} for {topic} talks"


STORIES: tuple[Callable[[Story], tuple[str, str]], ...] = (crash, order, match, closure, shares, treaty, visit)


def compose(draws: Draws) -> tuple[str, str]:
    """Returns a sentence and its headline; half of the sentences mention another event, before or after."""
    story = Story(draws)
    first = draws.below(len(STORIES))
    text, headline = STORIES[first](story)
    place = draws.below(4)
    if place > 1:
        return text, headline
    other, _ = STORIES[(first + 1 + draws.below(len(STORIES) - 1)) % len(STORIES)](story)
    main, background = text.removesuffix(" ."), other.removesuffix(" .")
    return (f"a day after {background} , {main} ." if place else f"{main} , a day after {background} ."), headline


def pairs(count: int, seed: int, split: int) -> Iterator[tuple[str, str]]:
    """Yields ``count`` texts with their headlines; deterministic given seed and split, on any machine."""

    def drawn(number: int, attempt: int) -> tuple[str, tuple[str, str]]:
        text, headline = compose(Draws(seed, split, number, attempt))
        return NUMBER.sub("#", headline), (text, headline)

    return (draw_for_split(split, partial(drawn, number)) for number in range(count))


def words() -> list[str]:
    """Returns the words and punctuation marks of the generated text, for a vocabulary."""
    names = (COUNTRIES, CITIES, PEOPLE, FIRMS, GOODS, TOPICS, VEHICLES, EVENTS, ROUNDS, BUILDINGS, REASONS, DAYS,
             ADJECTIVES, SPEAKERS, AGENCIES, ("higher", "lower"))  # fmt: skip
    samples = [text for number in range(200) for text in compose(Draws(0, 0, number))]
    pieces = re.findall(r"[a-z]+|[^A-Za-z\s]", " ".join([*(name for some in names for name in some), *samples]))
    return sorted(set(pieces))
