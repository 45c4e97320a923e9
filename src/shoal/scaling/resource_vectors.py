"""Demand and room as integer vectors over the few resources and labels that the demand names.

Everything the packer compares goes through here once. Amounts are whole ten-thousandths, as in
Ray, so that sums are exact and the order of the input cannot show in the result.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from shoal.scaling.demand import Resources, Selector, Shape
from shoal.scaling.offerings import is_special

Vector = tuple[int, ...]
LabelClass = tuple[str, ...]
UNIT = 10_000
_ABSENT = "\0"
# Ray gives every node one of each resource with this prefix, without listing it.
_IMPLICIT = "node:__internal_implicit_resource_"


@dataclass(frozen=True)
class Item:
    """`count` equal things to place, each on one node. `wants` holds the amounts above zero as
    (axis, amount); `hardness` sorts the items that are hardest to place first."""

    need: Vector
    wants: tuple[tuple[int, int], ...]
    selector: int
    special: int
    count: int
    hardness: tuple[object, ...]


class ResourceSpace:
    """The axes for one call of the planner: which resources, labels and selectors matter."""

    def __init__(self, shapes: Iterable[Shape], largest: Iterable[Resources] = ()) -> None:
        shapes = list(shapes)
        self.names = sorted({name for shape in shapes for name, _ in shape.resources})
        self._axis = {name: axis for axis, name in enumerate(self.names)}
        self._selectors: dict[tuple[Selector, ...], int] = {(): 0}
        for selectors in sorted({shape.selectors for shape in shapes}):
            self._selectors.setdefault(selectors, len(self._selectors))
        self._alternatives = list(self._selectors)
        self._keys = sorted(
            {r.key for alternatives in self._selectors for rules in alternatives for r in rules}
        )
        self._admits: dict[tuple[int, LabelClass], bool] = {}
        self._defaults = [(name, 1.0 if name.startswith(_IMPLICIT) else 0.0) for name in self.names]
        self._rooms: dict[int, tuple[Resources, Vector]] = {}
        self._special_bits: dict[str, int] = {}
        largest = list(largest)
        # An axis weighs what the largest machine's share of it weighs.
        self.weight = [
            1.0 / max([fixed(r.get(name, 0.0)) for r in largest] + [UNIT]) for name in self.names
        ]
        needs = [self.item(shape, 1).need for shape in shapes]
        # The axis that most shapes want: CPU, nearly always.
        wanted = [sum(need > 0 for need in column) for column in zip(*needs, strict=True)]
        self._main = wanted.index(max(wanted)) if wanted else 0
        # What every shape wants at least: a node with less than this is as good as full.
        least = enumerate(min(column) for column in zip(*needs, strict=True))
        self._least = [(axis, amount) for axis, amount in least if amount]

    def size(self, vector: Vector) -> int:
        """How large a need or a room is on the main axis, in powers of two: what fits is never
        of a larger size than the room it fits in."""
        return vector[self._main].bit_length() if vector else 0

    def is_useless(self, free: Vector) -> bool:
        """Whether no shape of this frame could fit in this room."""
        for axis, amount in self._least:  # noqa: SIM110 (asked for every row that is made)
            if free[axis] < amount:
                return True
        return False

    def item(self, shape: Shape, count: int) -> Item:
        """The shape's needs as a vector."""
        need = [0] * len(self.names)
        for name, amount in shape.resources:
            need[self._axis[name]] = max(1, fixed(amount))
        return self._item(tuple(need), self._selectors[shape.selectors], count)

    def resized(self, item: Item, count: int) -> Item:
        """The same item in another number."""
        return Item(item.need, item.wants, item.selector, item.special, count, item.hardness)

    def _item(self, need: Vector, selector: int, count: int) -> Item:
        wants = tuple((axis, amount) for axis, amount in enumerate(need) if amount)
        special = self.special_mask(self.names[axis] for axis, _ in wants)
        share = max((amount * self.weight[axis] for axis, amount in wants), default=0.0)
        hardness = (-special.bit_count(), selector == 0, -share, need, selector)
        return Item(need, wants, selector, special, count, hardness)

    def room(self, resources: Resources) -> Vector:
        """What a node with these resources offers on each axis."""
        # Callers that describe thousands of equal nodes share one mapping between them.
        known = self._rooms.get(id(resources))
        if known is not None:
            return known[1]
        get = resources.get
        vector = tuple([max(0, fixed(get(name, rest))) for name, rest in self._defaults])
        self._rooms[id(resources)] = (resources, vector)
        return vector

    def special_mask(self, names: Iterable[str]) -> int:
        """The scarce ones among these resources, as bits."""
        mask = 0
        for name in names:
            if is_special(name):
                mask |= self._special_bits.setdefault(name, 1 << len(self._special_bits))
        return mask

    def label_class(self, labels: Mapping[str, str]) -> LabelClass:
        """What the selectors can see of these labels: the value of each label they name."""
        return tuple([labels.get(key, _ABSENT) for key in self._keys]) if self._keys else ()

    def admits(self, selector: int, label_class: LabelClass) -> bool:
        """Whether nodes of this label class meet this selector."""
        if selector == 0:
            return True
        known = self._admits.get((selector, label_class))
        if known is None:
            pairs = zip(self._keys, label_class, strict=True)
            labels = {key: value for key, value in pairs if value != _ABSENT}
            known = Shape((), self._alternatives[selector]).admits(labels)
            self._admits[selector, label_class] = known
        return known


def fixed(amount: float) -> int:
    """An amount in whole ten-thousandths."""
    return round(amount * UNIT)


def copies(room: Vector, item: Item) -> int:
    """How many of the item fit in the room, as far as resources go; at most its count."""
    most = item.count
    for axis, amount in item.wants:
        fit = room[axis] // amount
        if fit < most:
            most = fit
            if not most:
                return 0
    return most
