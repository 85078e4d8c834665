"""A customer's case: the request, the decision under the desk's rules, and the related flights and bookings."""

import random
from dataclasses import dataclass

from .desk import FEE, Booking, Desk, Flight

CITIES = ("Bergen", "Cork", "Faro", "Gdansk", "Graz", "Lyon", "Malaga", "Oslo", "Porto", "Riga", "Turin", "Vilnius")
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
FIRST_NAMES = ("Ada", "Bruno", "Clara", "Dario", "Edith", "Felix", "Greta", "Hugo", "Ida", "Jonas", "Karin", "Leo")
LAST_NAMES = {
    "train": ("Abel", "Brandt", "Cortez", "Dahl", "Engel", "Fiedler", "Garcia", "Hansen", "Ivers", "Jansen", "Kowal"),
    "heldout": ("Lund", "Moreau", "Novak", "Olsen", "Petit", "Quist", "Rossi", "Silva", "Thorn", "Urban", "Vega"),
}
"""No customer of a held-out task is one of a training task."""
LETTERS = "BCDFGHJKLMNPQRSTVWXZ"


@dataclass(frozen=True)
class Wish:
    """Requirements for a flight."""

    origin: str
    destination: str
    day: str
    before: int | None = None
    """Minute of the day by which it leaves."""
    after: int | None = None
    budget: int | None = None
    """Euros."""

    def fits(self, flight: Flight) -> bool:
        is_there = (flight.origin, flight.destination, flight.day) == (self.origin, self.destination, self.day)
        is_early = self.before is None or flight.minute < self.before
        is_late = self.after is None or flight.minute >= self.after
        return is_there and is_early and is_late and (self.budget is None or flight.price <= self.budget)


@dataclass(frozen=True)
class Case:
    """One task. `kind`: book, change or cancel."""

    kind: str
    customer: str
    """Who asks: signs the request."""
    request: str
    wish: Wish | None = None
    reference: str = ""
    accepts_fee: bool = False

    def best(self, desk: Desk) -> Flight | None:
        """The cheapest flight that fits and has a seat now."""
        fitting = [flight for flight in desk.flights.values() if self.wish and self.wish.fits(flight)]
        free = [flight for flight in fitting if desk.is_free(flight)]
        return min(free, key=lambda flight: flight.price, default=None)

    def fee(self, booking: Booking) -> int:
        return FEE if booking.fare == "standard" and booking.status != "cancelled by the airline" else 0

    def refusal(self, booking: Booking) -> str:
        """Why the rules forbid a change or a cancellation; empty when they allow it."""
        if booking.passenger != self.customer:
            return "the booking is somebody else's"
        if booking.status == "cancelled by the airline":
            return ""
        if booking.fare == "basic":
            return "a basic fare can be neither changed nor cancelled"
        if self.fee(booking) and not self.accepts_fee:
            return "there is a fee, and the customer does not pay one"
        return ""


def make_case(seed: int, split: str, level: int) -> tuple[Case, Desk]:
    """The same for the same arguments."""
    chance = random.Random(f"{seed}:{split}:{level}")
    customer = _name(chance, split)
    wish = _wish(chance, has_condition=level > 0)
    flights = _flights(chance, wish, sell_out=level > 0)
    if level < 2:
        wish = _with_budget(chance, wish, flights) if level == 1 else wish
        return Case("book", customer, _ask_to_book(customer, wish), wish), Desk(flights, {})
    return _case_of_booking(chance, split, customer, wish, flights, is_hard=level == 3)


def _case_of_booking(
    chance: random.Random, split: str, customer: str, wish: Wish, flights: dict[str, Flight], *, is_hard: bool
) -> tuple[Case, Desk]:
    """Level 2: a change by the customer. Level 3: also cancellations, other people's bookings, canceled flights."""
    kind = chance.choice(("change", "cancel")) if is_hard else "change"
    passenger = _name(chance, split) if is_hard and chance.random() < 0.2 else customer
    status = "cancelled by the airline" if is_hard and chance.random() < 0.3 else "confirmed"
    fare = chance.choice(("basic", "standard", "standard", "standard", "flex", "flex"))
    old_day = chance.choice([day for day in DAYS if day != wish.day])
    old = Flight(_code(chance, flights), wish.origin, wish.destination, old_day, 600, 0, 0)
    reference = "".join(chance.choice(LETTERS) for _ in range(6))
    booking = Booking(reference, passenger, old.code, fare, chance.randrange(60, 320), status)
    accepts = chance.random() < 0.75
    case = Case(kind, customer, "", wish if kind == "change" else None, reference, accepts)
    request = _ask_to_change(case, wish) if kind == "change" else _ask_to_cancel(case)
    named = Case(kind, customer, request, case.wish, reference, accepts)
    return named, Desk({**flights, old.code: old}, {reference: booking})


def _name(chance: random.Random, split: str) -> str:
    return f"{chance.choice(FIRST_NAMES)} {chance.choice(LAST_NAMES['heldout' if split == 'heldout' else 'train'])}"


def _code(chance: random.Random, taken: dict[str, Flight]) -> str:
    return next(code for code in iter(lambda: f"NL{chance.randrange(100, 1000)}", None) if code not in taken)


def _wish(chance: random.Random, *, has_condition: bool) -> Wish:
    origin, destination = chance.sample(CITIES, 2)
    day, hour = chance.choice(DAYS), chance.choice((10, 11, 12, 13, 14)) * 60
    if not has_condition:
        return Wish(origin, destination, day)
    return Wish(origin, destination, day, **{chance.choice(("before", "after")): hour})


def _flights(chance: random.Random, wish: Wish, *, sell_out: bool) -> dict[str, Flight]:
    """Six on the requested day, three in the morning and three in the afternoon, and two on another day."""
    flights: dict[str, Flight] = {}
    minutes = [*chance.sample(range(6 * 60, 10 * 60, 5), 3), *chance.sample(range(15 * 60, 21 * 60, 5), 3)]
    prices = chance.sample(range(49, 320), 8)
    other_day = chance.choice([day for day in DAYS if day != wish.day])
    plan = [*((wish.day, minute) for minute in minutes), (other_day, 480), (other_day, 1080)]
    for (day, minute), price in zip(plan, prices, strict=True):
        code = _code(chance, flights)
        flights[code] = Flight(code, wish.origin, wish.destination, day, minute, price, chance.randrange(3, 30))
    if sell_out:
        fitting = sorted((flight for flight in flights.values() if wish.fits(flight)), key=lambda flight: flight.price)
        for flight, calls in zip(fitting[:-1], (chance.randrange(1, 6), chance.randrange(6, 10)), strict=False):
            flights[flight.code] = Flight(**{**vars(flight), "sells_out_after": calls})
    return flights


def _with_budget(chance: random.Random, wish: Wish, flights: dict[str, Flight]) -> Wish:
    """Mostly enough for any of the flights; now and then for none."""
    prices = [flight.price for flight in flights.values() if wish.fits(flight)]
    budget = min(prices) - 5 if chance.random() < 0.15 else max(prices) + chance.randrange(5, 60)
    return Wish(wish.origin, wish.destination, wish.day, wish.before, wish.after, budget)


def _ask_to_book(customer: str, wish: Wish) -> str:
    budget = f" It must not cost more than {wish.budget} euros." if wish.budget else ""
    return f"Please book me the cheapest flight {_in_words(wish)}.{budget}\nSigned: {customer}"


def _ask_to_change(case: Case, wish: Wish) -> str:
    return (
        f"My booking is {case.reference}. Please move it to the cheapest flight {_in_words(wish)}."
        f" {_about_fees(case)}\nSigned: {case.customer}"
    )


def _ask_to_cancel(case: Case) -> str:
    return f"Please cancel my booking {case.reference} and refund it. {_about_fees(case)}\nSigned: {case.customer}"


def _about_fees(case: Case) -> str:
    if case.accepts_fee:
        return "If there is a fee, I pay it."
    return "I do not pay any fee: if there is one, leave it as it is."


def _in_words(wish: Wish) -> str:
    times = ((" that leaves before {:02d}:00", wish.before), (" that leaves at {:02d}:00 or later", wish.after))
    condition = "".join(text.format(minute // 60) for text, minute in times if minute is not None)
    return f"from {wish.origin} to {wish.destination} on {wish.day}{condition}"
