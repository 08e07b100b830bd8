"""Colours that mean different things in one chart are told apart, by colour-blind people as well.

Colour blindness is simulated by Machado, Oliveira and Fernandes (A Physiologically-based Model for Simulation of Color
Vision Deficiency, 2009; severity 1.0, on linear RGB). How far apart colours have to be follows from Stone, Szafir and
Setlur (An Engineering Model for Color Difference as a Function of Size, 2014): of people who see two patches of `size`
degrees, the share p notices a difference in CIELAB of p (A + B / size) along an axis. They measured sizes from a third
of a degree; ours are somewhat smaller.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import combinations, pairwise
from math import sqrt
from pathlib import Path

import pytest

import nos_ec.console
from nos_ec.console.blocks import KIND_TEXTS, LEVELS
from nos_ec.console.overview import PARTS
from nos_ec.console.rates.rates import KINDS

CSS = (Path(nos_ec.console.__file__).parent / "static" / "console.css").read_text()
DARK = "@media (prefers-color-scheme: dark) {"
Vector = tuple[float, float, float]
VISION: Mapping[str, tuple[Vector, Vector, Vector]] = {
    "normal": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protanopia": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "deuteranopia": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
    "tritanopia": (
        (1.255528, -0.076749, -0.178779),
        (-0.078411, 0.930809, 0.147602),
        (0.004733, 0.691367, 0.303900),
    ),
}
TO_XYZ = ((0.4124564, 0.3575761, 0.1804375), (0.2126729, 0.7151522, 0.0721750), (0.0193339, 0.1191920, 0.9503041))
"""Of sRGB (IEC 61966-2-1), linear, with its white D65."""
AXES = ((10.16, 1.50), (10.68, 3.08), (10.70, 5.74))
"""A and B of the axes L*, a*, b*."""
PIXEL_DEGREES = 0.0213
"""CSS Values and Units: a pixel is 1/96 inch at the length of an arm, 28 inches."""
SWATCH = 14.4 * PIXEL_DEGREES
TILE = 8 * PIXEL_DEGREES


def sets_of_colours() -> dict[str, dict[str, str]]:
    """The variables of the style sheet by theme."""
    light, dark = dict[str, str](), dict[str, str]()
    for block in re.finditer(rf"({re.escape(DARK)}\s*)?:root \{{(.*?)\}}", CSS, re.DOTALL):
        found = dict(re.findall(r"--([\w-]+): ([^;]+);", block[2]))
        (dark if block[1] else light).update(found)
    return {"light": light, "dark": light | dark}


THEMES = sets_of_colours()


def colour(theme: str, value: str) -> str:
    """The value of a colour, `#rrggbb`, which may be a variable."""
    while value.startswith("var(--"):
        value = THEMES[theme][value[6:-1]]
    assert re.fullmatch("#[0-9a-f]{6}", value)
    return value


def painted(selector: str) -> str:
    """What the rule of a selector fills with."""
    rules = [
        rule
        for names, rule in re.findall(r"([^{}]+)\{([^{}]*)\}", CSS)
        if selector in [name.strip() for name in names.split(",")]
    ]
    (found,) = [value for rule in rules for value in re.findall(r"(?:fill|background): ([^;]+);", rule)[-1:]]
    return str(found)


def seen(value: str, vision: str) -> Vector:
    """The CIELAB coordinates of a colour as people with this vision see it."""
    given = [int(value[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in given]
    shown = [min(1.0, max(0.0, sum(a * b for a, b in zip(row, linear, strict=True)))) for row in VISION[vision]]
    ratios = [sum(a * b for a, b in zip(row, shown, strict=True)) / sum(row) for row in TO_XYZ]
    x, y, z = (one ** (1 / 3) if one > (6 / 29) ** 3 else one * (29 / 6) ** 2 / 3 + 4 / 29 for one in ratios)
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def share_that_notices(one: str, other: str, size: float) -> float:
    """The share of people of the worst vision who notice a difference; above 1 by so much everybody does."""
    return min(
        sqrt(
            sum(
                ((a - b) / (constant + by_size / size)) ** 2
                for a, b, (constant, by_size) in zip(seen(one, vision), seen(other, vision), AXES, strict=True)
            )
        )
        for vision in VISION
    )


PARTS_OF_COST = [f".part-{part}" for part in PARTS if part != "replicas"]
CHARTS = {
    "the parts of a cost": ([*PARTS_OF_COST, ".panel"], SWATCH),
    "requests and work": ([*(f".part-{kind}" for kind in KINDS), ".panel"], SWATCH),
    "the stripes of a block": (
        [f".chip.{kind}" for kind in ("header", "names", "live", "trash", "dead", "unread", "padding")],
        SWATCH,
    ),
    "tiles by kind": ([*(f".kind-{kind}" for kind in KIND_TEXTS), ".panel"], TILE),
}


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("chart", CHARTS)
def test_everybody_can_tell_the_colours_of_a_chart_apart(theme: str, chart: str) -> None:
    selectors, size = CHARTS[chart]
    colours = {selector: colour(theme, painted(selector)) for selector in selectors}
    alike = [
        (one, other)
        for one, other in combinations(colours, 2)
        if share_that_notices(colours[one], colours[other], size) < 1
    ]
    assert alike == []


@pytest.mark.parametrize("theme", THEMES)
def test_the_steps_of_the_ramp_are_seen_and_in_the_order_of_their_lightness(theme: str) -> None:
    """Half of all people see each single step; they are in order, and legends and texts say the same."""
    ramp = [colour(theme, painted(f".q{level}")) for level in range(1, LEVELS + 1)]
    for vision in VISION:
        lightness = [seen(value, vision)[0] for value in ramp]
        assert lightness == sorted(lightness, reverse=theme == "light"), vision
    assert min(share_that_notices(one, other, TILE) for one, other in pairwise(ramp)) >= 0.5
    assert share_that_notices(ramp[0], ramp[-1], TILE) >= 2


def test_thin_lines_differ_in_their_dashes() -> None:
    dashes = re.findall(r"^polyline\.part-([\w-]+) \{ stroke-dasharray: ([\d ]+); \}$", CSS, re.MULTILINE)
    assert {name for name, _ in dashes} == set(list(KINDS)[1:]), "one is drawn without gaps"
    assert len({dash for _, dash in dashes}) == len(dashes)


def test_known_colours_have_the_coordinates_of_the_literature() -> None:
    assert seen("#ffffff", "normal") == pytest.approx((100, 0, 0), abs=0.01)
    assert seen("#ff0000", "normal") == pytest.approx((53.24, 80.09, 67.20), abs=0.02)
    assert seen("#0000ff", "normal") == pytest.approx((32.30, 79.19, -107.86), abs=0.02)
    assert share_that_notices("#ff0000", "#00aa00", SWATCH) < 1 < share_that_notices("#ff0000", "#0000ff", SWATCH)
