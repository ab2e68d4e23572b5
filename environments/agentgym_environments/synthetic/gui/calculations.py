"""Tasks of the calculator: what it must show. Results are whole or end after a few places."""

from __future__ import annotations

from random import Random

from agentgym_environments.synthetic.gui.task import GuiTask


def shown(kind: str, goal: str, keys: str, result: str) -> GuiTask:
    return GuiTask(kind=kind, goal=f"{goal} Leave the result on the calculator's display.", apps=("calculator",),
                shows=result, keys=keys)  # fmt: skip


def product(random: Random) -> GuiTask:
    a, b = random.randint(1201, 9999), random.randint(1201, 9999)
    return shown("product", f"Work out {a} * {b}.", f"{a}*{b}=", str(a * b))


def difference(random: Random) -> GuiTask:
    a, b = sorted(random.sample(range(1_000_000, 99_999_999), 2), reverse=True)
    return shown("difference", f"Work out {a} - {b}.", f"{a}-{b}=", str(a - b))


def quotient(random: Random) -> GuiTask:
    b, result = random.randint(101, 999), random.randint(1201, 9999)
    return shown("quotient", f"Work out {b * result} / {b}.", f"{b * result}/{b}=", str(result))


def total(random: Random) -> GuiTask:
    parts = [random.randint(1_000, 99_999) for _ in range(random.randint(3, 5))]
    return shown("sum", f"Add up {', '.join(map(str, parts))}.", "+".join(map(str, parts)) + "=", str(sum(parts)))


def bracketed(random: Random) -> GuiTask:
    a, b, c, d = (random.randint(101, 999) for _ in range(4))
    expression = f"({a}+{b})*({c}+{d})"
    return shown("brackets", f"Work out {expression}.", f"{expression}=", str((a + b) * (c + d)))


def mixed(random: Random) -> GuiTask:
    a, b, c, d = (random.randint(101, 999) for _ in range(4))
    expression = f"{a * b}/{b}*{c}+{d}*{c}"
    return shown("mixed", f"Work out {expression}.", f"{expression}=", str(a * c + d * c))


def root(random: Random) -> GuiTask:
    result, a = random.randint(1201, 9999), random.randint(11, 99)
    rest = result * result % a
    expression = f"{a}*{result * result // a}+{rest}"
    return shown("root", f"Work out the square root of {expression}.", f"{expression}=\\sqrt", str(result))


def shopping(random: Random) -> GuiTask:
    bought = [(random.randint(12, 99), random.randint(101, 999)) for _ in range(3)]
    expression = ", ".join(f"{count} boxes at {price} a box" for count, price in bought)
    keys = "+".join(f"{count}*{price}" for count, price in bought) + "="
    worth = sum(count * price for count, price in bought)
    return shown("shopping", f"What do they cost together: {expression}?", keys, str(worth))


def hexadecimal(random: Random) -> GuiTask:
    while True:
        number = random.randint(70_000, 9_999_999)
        if set(f"{number:X}") & set("ABCDEF"):
            break
    goal = f"Show {number} as a hexadecimal number (scientific mode has number bases)."
    return shown("hexadecimal", goal, f"{number}\\hex", f"{number:X}")


EASY = (product, difference, quotient, total)
HARD = (bracketed, mixed, root, shopping, hexadecimal)
