"""One clerk's work on one case: the tools, what they were used for, and whether it was right."""

from typing import Any

from .cases import Case
from .desk import Booking, Desk, Flight, NotDone


class Work:
    """Tools are the methods `tool_<name>`: they return what the clerk reads, or raise NotDone."""

    def __init__(self, case: Case, desk: Desk) -> None:
        self.case, self.desk = case, desk
        self.opening = dict(desk.bookings)
        self.outcome = self.message = ""
        self.has_broken_a_rule = False
        self.wasted = 0
        self._is_good = False
        """Whether the last change was right at the time."""
        self._done = 0
        self._asked: set[tuple[str, ...]] = set()
        self._found: list[Flight] | None = None
        """Result of the search that the case needs."""
        self._refused_by_sale = False

    def tool_search_flights(self, origin: str, destination: str, day: str) -> str:
        wish = self.case.wish
        asked = (origin.lower(), destination.lower(), day.lower())
        is_needed = wish is not None and asked == (wish.origin.lower(), wish.destination.lower(), wish.day.lower())
        self._count(is_needed and (self._refused_by_sale or ("search", *asked) not in self._asked))
        self._asked.add(("search", *asked))
        self._refused_by_sale = False
        found = self.desk.find(origin, destination, day)
        if is_needed:
            self._found = found
        return "\n".join(self._in_words(flight) for flight in found) or "No flights with free seats."

    def tool_get_booking(self, reference: str) -> str:
        booking = self._booking(reference)
        self._count(booking.reference == self.case.reference and ("look", booking.reference) not in self._asked)
        self._asked.add(("look", booking.reference))
        flight = self.desk.flight(booking.flight)
        return (
            f"{booking.reference}: {booking.passenger}, {flight.code} {flight.day} {flight.departure}"
            f" {flight.origin} to {flight.destination},"
            f" {booking.fare} fare, {booking.price} euros paid, {booking.status}"
        )

    def tool_book_flight(self, flight: str, passenger: str) -> str:
        wanted, best = self._flight(flight), self.case.best(self.desk)
        booking = self._try(lambda: self.desk.book(wanted, passenger))
        wish = self.case.wish
        is_allowed = (
            self.case.kind == "book"
            and passenger.strip() == self.case.customer
            and not self._done
            and (wish is None or wish.budget is None or wanted.price <= wish.budget)
        )
        self._note(is_allowed=is_allowed, is_good=wanted == best)
        return f"Booked: {booking.reference}, {wanted.code} for {passenger}, {wanted.price} euros."

    def tool_change_booking(self, reference: str, flight: str, fee: int) -> str:
        before, wanted, best = self._booking(reference), self._flight(flight), self.case.best(self.desk)
        after = self._try(lambda: self.desk.change(before, wanted))
        is_allowed = self.case.kind == "change" and self._may(before) and fee == self.case.fee(before)
        self._note(is_allowed=is_allowed, is_good=wanted == best)
        return f"Changed: {after.reference} is now on {wanted.code}, a fee of {fee} euros was charged."

    def tool_cancel_booking(self, reference: str, refund: int) -> str:
        before = self._booking(reference)
        after = self._try(lambda: self.desk.cancel(before))
        is_right = self.case.kind == "cancel" and self._may(before) and refund == before.price - self.case.fee(before)
        self._note(is_allowed=is_right, is_good=is_right)
        return f"Cancelled: {after.reference}, {refund} euros go back to the customer."

    def tool_close_case(self, outcome: str, message: str) -> str:
        if outcome not in {"done", "refused"}:
            raise NotDone("The outcome is done or refused.")
        self.outcome, self.message = outcome, str(message)
        return "The case is closed."

    def is_to_be_refused(self) -> bool:
        """The rules forbid it, or no flight fits."""
        if self.case.kind == "book":
            return not self._done and self.case.best(self.desk) is None
        return bool(self.case.refusal(self.opening[self.case.reference]))

    def is_right(self) -> bool:
        """How the case was closed, and the changes made for it. A refusal requires a lookup first."""
        if self.has_broken_a_rule:
            return False
        if self.is_to_be_refused():
            return self.outcome == "refused" and not self._done and self._has_looked()
        return self.outcome == "done" and self._done == 1 and self._is_good

    def subject(self) -> str:
        """The name that the last message must contain: the booked flight, else the booking, else the destination."""
        if self.case.reference:
            return self.case.reference
        booked = [self.desk.bookings[reference].flight for reference in self.desk.changes]
        return booked[-1] if booked else (self.case.wish.destination.upper() if self.case.wish else "")

    def amount(self) -> int:
        """Euros that it must name: the price, the fee or the refund; nothing when the case was refused."""
        if self.is_to_be_refused():
            return 0
        if self.case.kind == "book":
            return self.desk.bookings[self.desk.changes[-1]].price if self.desk.changes else 0
        before = self.opening[self.case.reference]
        return self.case.fee(before) if self.case.kind == "change" else before.price - self.case.fee(before)

    def best_call(self) -> tuple[str, dict[str, Any]]:
        """Perfect work from here on."""
        case, wish = self.case, self.case.wish
        if case.reference and ("look", case.reference) not in self._asked:
            return "get_booking", {"reference": case.reference}
        needs_search = wish is not None and self._found is None
        if self._done or (case.reference and self.is_to_be_refused()):
            return self._close()
        if needs_search and wish is not None:
            return "search_flights", {"origin": wish.origin, "destination": wish.destination, "day": wish.day}
        best = case.best(self.desk)
        if case.kind == "cancel":
            return "cancel_booking", {"reference": case.reference, "refund": self.amount()}
        if best is None:
            return self._close()
        if case.kind == "change":
            return "change_booking", {"reference": case.reference, "flight": best.code, "fee": self.amount()}
        return "book_flight", {"flight": best.code, "passenger": case.customer}

    def first_call(self) -> tuple[str, dict[str, Any]]:
        """Where perfect work begins: at the booking, or with a search."""
        wish = self.case.wish
        if wish is None or self.case.reference:
            return "get_booking", {"reference": self.case.reference}
        return "search_flights", {"origin": wish.origin, "destination": wish.destination, "day": wish.day}

    def _close(self) -> tuple[str, dict[str, Any]]:
        outcome = "refused" if self.is_to_be_refused() else "done"
        return "close_case", {"outcome": outcome, "message": f"{self.subject()}, {self.amount()} euros."}

    def _has_looked(self) -> bool:
        return self._found is not None if self.case.kind == "book" else ("look", self.case.reference) in self._asked

    def _may(self, booking: Booking) -> bool:
        return booking.reference == self.case.reference and not self.case.refusal(booking) and not self._done

    def _note(self, *, is_allowed: bool, is_good: bool) -> None:
        self._done += 1
        self._is_good = is_good
        self.has_broken_a_rule |= not is_allowed

    def _count(self, is_useful: bool) -> None:
        self.wasted += not is_useful

    def _booking(self, reference: str) -> Booking:
        return self._or_wasted(lambda: self.desk.booking(reference))

    def _flight(self, code: str) -> Flight:
        return self._or_wasted(lambda: self.desk.flight(code))

    def _or_wasted(self, find: Any) -> Any:
        try:
            return find()
        except NotDone:
            self.wasted += 1
            raise

    def _try(self, do: Any) -> Booking:
        """Whether a seat was sold in the meantime, which is a reason to search once more."""
        try:
            return do()
        except NotDone:
            self._refused_by_sale = True
            raise

    def _in_words(self, flight: Flight) -> str:
        left = flight.seats_left(self.desk.clock)
        return (
            f"{flight.code} {flight.day} {flight.departure} {flight.origin} to {flight.destination},"
            f" {flight.price} euros, {left} seat{'s' * (left != 1)}"
        )
