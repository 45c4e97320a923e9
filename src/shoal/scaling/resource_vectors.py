"""Resources and labels as integer vectors over those that the demand names.

Everything that packing compares is encoded here once. Amounts are fixed-point, in ten-thousandths
as in Ray, so that sums are exact and the order of the input cannot affect the result.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from shoal.scaling.demand import Resources, Selector, Shape
from shoal.scaling.offerings import is_scarce

Vector = tuple[int, ...]
LabelClass = tuple[str, ...]
UNIT = 10_000
_ABSENT = "\0"
# Every Ray node has one of each resource with this prefix, although it does not list it.
_IMPLICIT = "node:__internal_implicit_resource_"


@dataclass(frozen=True)
class Item:
    """`count` equal tasks, actors or bundles, each to be placed on one node. `amounts` has an entry
    per axis; `nonzero` has only those above zero, as (axis, amount). `selector` is the index of a
    label selector, `scarce` a bit mask of the scarce resources it needs. Sorting by `hardness` puts
    the items that are hardest to place first."""

    amounts: Vector
    nonzero: tuple[tuple[int, int], ...]
    selector: int
    scarce: int
    count: int
    hardness: tuple[object, ...]


class ResourceSpace:
    """The axes of one planning pass: the resources, labels and selectors that matter."""

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
        self._preferences: dict[tuple[int, LabelClass], int | None] = {}
        self._defaults = [(name, implicit_amount(name)) for name in self.names]
        self._vectors: dict[int, tuple[Resources, Vector]] = {}
        self._scarce_bits: dict[str, int] = {}
        largest = list(largest)
        # Amounts are weighted by the largest node's capacity on each axis.
        self.weight = [
            1.0 / max([to_fixed_point(r.get(name, 0.0)) for r in largest] + [UNIT])
            for name in self.names
        ]
        vectors = [self.item(shape, 1).amounts for shape in shapes]
        # The axis that most shapes need: nearly always CPU.
        users = [sum(amount > 0 for amount in column) for column in zip(*vectors, strict=True)]
        self._main_axis = users.index(max(users)) if users else 0
        # What every shape needs at least: a node with less than this is as good as full.
        min_amounts = enumerate(min(column) for column in zip(*vectors, strict=True))
        self._min_amounts = [(axis, amount) for axis, amount in min_amounts if amount]

    def size_class(self, vector: Vector) -> int:
        """The size on the main axis in powers of two. An item never fits into a smaller size class
        than its own."""
        return vector[self._main_axis].bit_length() if vector else 0

    def fits_nothing(self, free: Vector) -> bool:
        """Whether no shape of this space fits into this much free capacity."""
        for axis, amount in self._min_amounts:  # noqa: SIM110 (hot: called for every new row)
            if free[axis] < amount:
                return True
        return False

    def item(self, shape: Shape, count: int) -> Item:
        """The shape as an item with this count."""
        amounts = [0] * len(self.names)
        for name, amount in shape.resources:
            amounts[self._axis[name]] = max(1, to_fixed_point(amount))
        return self._item(tuple(amounts), self._selectors[shape.selectors], count)

    def size(self, item: Item) -> float:
        """The size of one copy of an item: the sum of its shares of the largest node."""
        return sum([amount * self.weight[axis] for axis, amount in item.nonzero])

    def share(self, item: Item) -> float:
        """The share of the largest node that one copy of an item needs, of its main resource."""
        return max([amount * self.weight[axis] for axis, amount in item.nonzero], default=0.0)

    def resized(self, item: Item, count: int) -> Item:
        """The same item with another count."""
        return Item(item.amounts, item.nonzero, item.selector, item.scarce, count, item.hardness)

    def _item(self, amounts: Vector, selector: int, count: int) -> Item:
        nonzero = tuple((axis, amount) for axis, amount in enumerate(amounts) if amount)
        scarce = self.scarce_mask(self.names[axis] for axis, _ in nonzero)
        share = max([amount * self.weight[axis] for axis, amount in nonzero], default=0.0)
        hardness = (-scarce.bit_count(), selector == 0, -share, amounts, selector)
        return Item(amounts, nonzero, selector, scarce, count, hardness)

    def vector(self, resources: Resources) -> Vector:
        """The resources of a node, per axis."""
        # Callers describe thousands of equal nodes with one shared mapping.
        known = self._vectors.get(id(resources))
        if known is not None:
            return known[1]
        get = resources.get
        vector = tuple(
            [max(0, to_fixed_point(get(name, default))) for name, default in self._defaults]
        )
        self._vectors[id(resources)] = (resources, vector)
        return vector

    def scarce_mask(self, names: Iterable[str]) -> int:
        """The scarce ones among these resources, as bits."""
        mask = 0
        for name in names:
            if is_scarce(name):
                mask |= self._scarce_bits.setdefault(name, 1 << len(self._scarce_bits))
        return mask

    def label_class(self, labels: Mapping[str, str]) -> LabelClass:
        """The values of the labels that the selectors name; equal classes match equally."""
        return tuple([labels.get(key, _ABSENT) for key in self._keys]) if self._keys else ()

    def matches(self, selector: int, label_class: LabelClass) -> bool:
        """Whether nodes of this label class match this selector."""
        return selector == 0 or self.preference(selector, label_class) is not None

    def preference(self, selector: int, label_class: LabelClass) -> int | None:
        """The position of the alternative that these nodes match; None if they match none."""
        key = (selector, label_class)
        if key not in self._preferences:
            pairs = zip(self._keys, label_class, strict=True)
            labels = {name: value for name, value in pairs if value != _ABSENT}
            shape = Shape((), self._alternatives[selector])
            self._preferences[key] = shape.preference(labels)
        return self._preferences[key]

    def has_alternatives(self, selector: int) -> bool:
        """Whether a selector prefers some nodes that match it to others."""
        return len(self._alternatives[selector]) > 1


def implicit_amount(name: str) -> float:
    """How much of a resource a node has that does not list it."""
    return 1.0 if name.startswith(_IMPLICIT) else 0.0


def to_fixed_point(amount: float) -> int:
    """An amount in whole ten-thousandths."""
    return round(amount * UNIT)


def copies(vector: Vector, item: Item) -> int:
    """How many copies of the item fit, as far as resources go; at most its count."""
    copies = item.count
    for axis, amount in item.nonzero:
        fit = vector[axis] // amount
        if fit < copies:
            copies = fit
            if not copies:
                return 0
    return copies
