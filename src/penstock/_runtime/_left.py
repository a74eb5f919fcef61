"""What was not handed out yet, so that it can be begun again anywhere."""

from penstock._graph._ordered._chunk import Token
from penstock._runtime._batches import Course, Unit


class Left:
    """The steps that are left, while batches come in order or each with its step.

    Args:
        courses: all of them, in order.
    """

    def __init__(self, courses: list[Course]) -> None:
        self._courses = courses  # at least one, of no steps perhaps
        self._index = 0  # batches of the first that were handed out since it stands there
        self._token: Token = None  # that the last of them came with

    def hand_out(self, token: Token) -> bool:
        """Take a batch out, by the token that it came with; return whether it was the first of those that are left."""
        unit = self.place(token)
        if unit is None:
            self._index += 1
            self._token = token
            return True
        courses = self.courses()
        self._courses = without(courses, Course(unit, 1, 0)) or [courses[0].part(courses[0].steps, courses[0].steps)]
        return unit.step == courses[0].first.step

    def courses(self) -> list[Course]:
        """Return what is left, in order; at least one course, of no steps perhaps."""
        if self._index:
            first, *others = self._courses
            first = first.after(self._index, self._token)
            self._courses = [first, *others] if first.steps or not others else others
            self._index = 0
        return self._courses

    def place(self, token: Token) -> Unit | None:
        """Return the place of the step that a token tells; None where it tells none."""
        course = self._courses[0]
        return None if token is None or course.where is not None else course.unit(token - course.first.step)


def without(courses: list[Course], taken: Course) -> list[Course]:
    """Return what is left of some courses without the steps of another, which lie in one of them."""
    left: list[Course] = []
    for course in courses:
        before = taken.first.step - course.first.step
        if 0 <= before < course.steps:
            after = before + taken.steps
            parts = (course.part(0, before), course.part(after, course.steps))
            left += (part for part in parts if part.steps)
        else:
            left.append(course)
    return left
