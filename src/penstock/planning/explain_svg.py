"""Draws boxes, groups around them and arrows as SVG, laid out from left to right.

Knows nothing of flows.  A group is laid out by itself first and then counts as one big box in the
group around it; boxes of one level are put in columns by the longest way to them.  Arrows that go
back run below everything in their group.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape
from itertools import pairwise

__all__ = ["Picture"]

GAP_X, GAP_Y, PAD, TITLE, LANE = 96, 22, 18, 24, 26
CHARACTER, LINE = 6.6, 15
STYLE = """
text { font-family: 'DejaVu Sans', Helvetica, sans-serif; font-size: 11px; fill: #1d2733; }
.name { font-weight: bold; font-size: 12px; }
.frontier { fill: #a13d00; }
.label { font-size: 10px; fill: #51606f; }
.loop { fill: #3f6fb5; fill-opacity: 0.06; stroke: #3f6fb5; stroke-dasharray: 5 4; }
.loop-title { fill: #2c5694; font-weight: bold; }
.box { fill: #ffffff; stroke: #51606f; }
.small { fill: #e9eff8; stroke: #3f6fb5; }
.arrow { fill: none; stroke: #51606f; stroke-width: 1.2; }
.back { stroke: #c2410c; stroke-dasharray: 6 3; }
.back-label { fill: #c2410c; }
"""


@dataclass
class _Item:
    """A box or a group: its size, and its place once it has one."""

    key: object
    width: float = 0
    height: float = 0
    x: float = 0
    y: float = 0


@dataclass
class _Box(_Item):
    lines: tuple[tuple[str, str], ...] = ()
    """Class and text of each line."""
    small: bool = False
    group: str | None = None


@dataclass
class _Group(_Item):
    title: str = ""
    parent: str | None = None
    lanes: int = 0
    """How many arrows go back in it."""
    members: list[_Item] = field(default_factory=list)


@dataclass(frozen=True)
class _Arrow:
    source: int
    target: int
    label: str
    back: bool


class Picture:
    """A picture in the making.

    >>> picture = Picture("example")
    >>> picture.box(0, "numbers", "source"); picture.box(1, "sink", "memory")
    >>> picture.arrow(0, 1, "hash(n)")
    >>> picture.svg().startswith("<svg ")
    True
    """

    def __init__(self, title: str) -> None:
        self._root = _Group(None, title=title)
        self._groups: dict[str | None, _Group] = {None: self._root}
        self._boxes: dict[int, _Box] = {}
        self._arrows: list[_Arrow] = []
        self._gaps: dict[_Arrow, list[_Item]] = {}

    def group(self, name: str, parent: str | None, about: str) -> None:
        """A group; the one around it must be known already."""
        made = _Group(name, title=f"loop {name} {about}", parent=parent)
        self._groups[name] = made
        self._groups[parent].members.append(made)

    def box(
        self,
        number: int,
        name: str,
        about: str,
        note: str = "",
        group: str | None = None,
        small: bool = False,
    ) -> None:
        """A box with a name, a line about it and perhaps a note."""
        lines = [("name", name)]
        if about != name:
            lines.append(("about", _short(about, 34)))
        if note and not small:
            lines.append(("frontier", _short(note, 40)))
        if small:
            lines = lines[:1]
        width = max(len(text) for _, text in lines) * CHARACTER + 20
        made = _Box(number, width, len(lines) * LINE + 12, lines=tuple(lines), small=small)
        made.group = group
        self._boxes[number] = made
        self._groups[group].members.append(made)

    def arrow(self, source: int, target: int, label: str = "", back: bool = False) -> None:
        """An arrow between two boxes; one that goes back does not count for the columns."""
        for number, other in enumerate(self._arrows):
            if (other.source, other.target, other.back) == (source, target, back):
                label = ", ".join(filter(None, [other.label, label]))
                del self._arrows[number]
                break
        self._arrows.append(_Arrow(source, target, label, back))
        if back:
            self._groups[self._boxes[target].group].lanes += 1

    def svg(self) -> str:
        """The whole picture."""
        self._lay_out(self._root)
        self._move(self._root, 10, 10)
        width, height = self._root.width + 20, self._root.height + 20
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
            f'viewBox="0 0 {width:.0f} {height:.0f}">',
            f"<style>{STYLE}</style>",
            '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
            'markerHeight="7" orient="auto"><path d="M0,0 L8,4 L0,8 z" fill="#51606f"/></marker>'
            "</defs>",
            f'<rect width="{width:.0f}" height="{height:.0f}" fill="#ffffff"/>',
            _text(self._root.x + 4, self._root.y + 14, "name", f"flow {self._root.title}"),
        ]
        parts += [_group_svg(group) for name, group in self._groups.items() if name is not None]
        lanes = dict.fromkeys(self._groups, 0)
        for arrow in self._arrows:
            name = self._boxes[arrow.target].group
            parts.append(self._arrow_svg(arrow, lanes[name]))
            lanes[name] += arrow.back
        parts += [_box_svg(box) for box in self._boxes.values()]
        return "\n".join([*parts, "</svg>", ""])

    # -- layout ----------------------------------------------------------------------------------

    def _lay_out(self, group: _Group) -> None:
        """Give the members of a group places relative to it, and the group its size."""
        for member in group.members:
            if isinstance(member, _Group):
                self._lay_out(member)
        columns = self._columns(group)
        x = float(PAD)
        heights = [sum(m.height + GAP_Y for m in column) - GAP_Y for column in columns]
        tallest = max(heights, default=0.0)
        for column, height in zip(columns, heights, strict=True):
            widest = max(member.width for member in column)
            y = TITLE + PAD / 2 + (tallest - height) / 2
            for member in column:
                if type(member) is _Item:
                    member.width = widest
                member.x, member.y = x + (widest - member.width) / 2, y
                y += member.height + GAP_Y
            x += widest + GAP_X
        title = len(group.title) * CHARACTER * 1.1 + 2 * PAD
        group.width = max(x - GAP_X + PAD, title)
        group.height = TITLE + PAD / 2 + tallest + PAD + group.lanes * LANE

    def _columns(self, group: _Group) -> list[list[_Item]]:
        """The members by the longest way to them; arrows leave gaps in the columns they pass."""
        members = {id(member): member for member in group.members}
        arrows = []
        for arrow in self._arrows:
            source = self._member(group, self._boxes[arrow.source])
            target = self._member(group, self._boxes[arrow.target])
            if not arrow.back and source and target and source is not target:
                arrows.append((arrow, id(source), id(target)))
        level = dict.fromkeys(members, 0)
        for _ in members:
            for _, source_key, target_key in arrows:
                level[target_key] = max(level[target_key], level[source_key] + 1)
        columns: list[list[_Item]] = [[] for _ in range(max(level.values(), default=-1) + 1)]
        for key, member in members.items():
            columns[level[key]].append(member)
        for arrow, source_key, target_key in arrows:
            for column in range(level[source_key] + 1, level[target_key]):
                gap = _Item(arrow, 1, 6)
                columns[column].append(gap)
                group.members.append(gap)
                self._gaps.setdefault(arrow, []).append(gap)
        back = {self._boxes[arrow.target].key for arrow in self._arrows if arrow.back}
        return [sorted(column, key=lambda item: item.key in back) for column in columns]

    def _member(self, group: _Group, box: _Box) -> _Item | None:
        """The member of a group that is or holds a box."""
        item: _Item = box
        name = box.group
        while name != group.key:
            if name is None:
                return None
            item = self._groups[name]
            name = self._groups[name].parent
        return item

    def _move(self, group: _Group, x: float, y: float) -> None:
        """Make relative places absolute."""
        group.x, group.y = x, y
        for member in group.members:
            if isinstance(member, _Group):
                self._move(member, x + member.x, y + member.y)
            else:
                member.x, member.y = x + member.x, y + member.y

    def _arrow_svg(self, arrow: _Arrow, lane: int) -> str:
        source, target = self._boxes[arrow.source], self._boxes[arrow.target]
        if arrow.back:
            group = self._groups[target.group]
            floor = group.y + group.height - LANE * (group.lanes - lane) + LANE / 3
            x1, y1 = source.x + source.width / 2, source.y + source.height
            x2, y2 = target.x + target.width / 2, target.y + target.height
            path = f"M{x1:.1f},{y1:.1f} V{floor:.1f} H{x2:.1f} V{y2 + 2:.1f}"
            label = _text((x1 + x2) / 2, floor - 4, "label back-label", arrow.label, middle=True)
            return f'<path class="arrow back" d="{path}" marker-end="url(#tip)"/>{label}'
        points = [(source.x + source.width, source.y + source.height / 2)]
        for gap in self._gaps.get(arrow, ()):
            height = gap.y + gap.height / 2
            points += [(gap.x, height), (gap.x + gap.width, height)]
        points.append((target.x - 1, target.y + target.height / 2))
        path = f"M{points[0][0]:.1f},{points[0][1]:.1f}"
        for (x1, y1), (x2, y2) in pairwise(points):
            bend = (x2 - x1) / 2
            path += f" C{x1 + bend:.1f},{y1:.1f} {x2 - bend:.1f},{y2:.1f} {x2:.1f},{y2:.1f}"
        (x1, y1), (x2, y2) = points[-2:]
        label = _text((x1 + x2) / 2, (y1 + y2) / 2 - 5, "label", arrow.label, middle=True)
        return f'<path class="arrow" d="{path}" marker-end="url(#tip)"/>{label}'


def _group_svg(group: _Group) -> str:
    return (
        f'<rect class="loop" x="{group.x:.1f}" y="{group.y:.1f}" width="{group.width:.1f}" '
        f'height="{group.height:.1f}" rx="10"/>'
        + _text(group.x + 10, group.y + 16, "loop-title", group.title)
    )


def _box_svg(box: _Box) -> str:
    kind, round_ = ("small", box.height / 2) if box.small else ("box", 5)
    shape = (
        f'<rect class="{kind}" x="{box.x:.1f}" y="{box.y:.1f}" width="{box.width:.1f}" '
        f'height="{box.height:.1f}" rx="{round_}"/>'
    )
    lines = [
        _text(box.x + box.width / 2, box.y + 17 + LINE * number, style, text, middle=True)
        for number, (style, text) in enumerate(box.lines)
    ]
    return shape + "".join(lines)


def _text(x: float, y: float, style: str, text: str, middle: bool = False) -> str:
    if not text:
        return ""
    anchor = ' text-anchor="middle"' if middle else ""
    return f'<text class="{style}" x="{x:.1f}" y="{y:.1f}"{anchor}>{escape(text)}</text>'


def _short(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"
