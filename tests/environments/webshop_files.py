"""Products and instructions of our own in the format of WebShop's files, which are not here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

KINDS = {
    # kind: query, categories, attributes to choose from, options
    "desk lamp": (
        "desk lamps", "Tools & Home › Lighting › Lamps › Desk Lamps",
        ["touch control", "eye caring", "usb port", "memory function", "clamp base"],
        {"Color": ["Black", "Silver/White", "Rose Gold"], "Style": ["With Plug", "Battery"]},
    ),
    "rain jacket": (
        "mens jackets", "Clothing, Shoes › Men › Jackets › Rain Jackets",
        ["water resistant", "hooded", "machine wash", "reflective trim", "inner pocket"],
        {"Color": ["Navy Blue", "Moss Green", "Burgundy"], "Size": ["Small", "Medium", "X-Large"]},
    ),
    "green tea": (
        "tea", "Grocery › Beverages › Tea › Green Tea",
        ["caffeine free", "certified organic", "loose leaf", "gluten free", "hand picked"],
        {"Flavor Name": ["Ginger Lime", "Peppermint", "Plain"],
         "Size": ["20 Count (Pack of 1)", "20 Count (Pack of 6)"]},
    ),
    "night cream": (
        "face moisturizer", "Beauty › Skin Care › Face › Creams",
        ["fragrance free", "cruelty free", "hyaluronic acid", "dry skin", "paraben free"],
        {"Scent": ["Neroli", "Unscented"], "Size": ["1.7 Fl Oz", "3.4 Fl Oz"]},
    ),
    "bookcase": (
        "living room furniture", "Home & Kitchen › Furniture › Living Room › Bookcases",
        ["solid wood", "easy assemble", "wall mounted", "five shelves", "scratch proof"],
        {"Color": ["Walnut", "White Oak", "Espresso Brown"]},
    ),
    "phone case": (
        "phone cases", "Cell Phones › Cases › Basic Cases",
        ["wireless charging", "shock absorbing", "card slot", "tempered glass", "kickstand"],
        {"Color": ["Clear", "Teal Marble", "Skull Red"], "Compatible Model": ["Ariel 5", "Ariel 5 Max"]},
    ),
    "running shoe": (
        "womens sneakers", "Clothing, Shoes › Women › Shoes › Road Running",
        ["rubber sole", "arch support", "breathable mesh", "slip resistant", "memory foam"],
        {"Color": ["Coral/Grey", "Black", "Lilac Mist"], "Size": ["6.5", "7", "8.5 Wide"]},
    ),
    "throw pillow": (
        "decorative pillows", "Home & Kitchen › Bedding › Decorative Pillows",
        ["hidden zipper", "double sided", "super soft", "spot clean", "hypoallergenic filling"],
        {"Color": ["Mustard Yellow", "Charcoal"], "Size": ["18\" x 18\"", "20\" x 20\""]},
    ),
}  # fmt: skip
MAKERS = ("Orlavik", "Tessmore", "Quillow", "Brantel", "Fenwyck")
PRICES = ("$18.49", "", "$24.00$39.99", "$1,249.00", "$63.20")
"""One price, none, a range, thousands."""


def products() -> list[dict[str, Any]]:
    """Forty products, and four records that WebShop leaves out."""
    made = []
    for place, (kind, (query, categories, attributes, options)) in enumerate(KINDS.items()):
        for number, maker in [*enumerate(MAKERS)][::-1]:
            has = own_attributes(attributes, number)
            bullets = [f"Made by {maker}.", *(f"{one.capitalize()} for every day." for one in has)]
            made.append(
                {
                    "asin": asin(place, number),
                    "name": f"{maker} {kind.title()} No. {number + 2}",
                    "full_description": "" if number == 4 else f"Everybody likes this {kind}.",
                    "small_description": " ".join(bullets) if number == 3 else bullets,
                    "pricing": PRICES[(place + number) % len(PRICES)],
                    "customization_options": chosen_options(options, number),
                    "category": "abcdefgh"[place],
                    "query": f" {query.title()}",
                    "product_category": categories,
                    "images": [f"https://images.example/{place}-{number}.jpg"],
                    "brand": maker,
                    "seller_name": "somebody",
                    "total_reviews": None,
                }
            )
    left_out = [
        {**made[0], "asin": "nan"},
        {**made[1], "asin": "B0TOOLONGNUMBER"},
        made[2],
        {**made[3], "name": "Twice"},
    ]
    return [*made[:20], *left_out, *made[20:]]


def own_attributes(attributes: list[str], number: int) -> list[str]:
    """Three of five, others for each product of a kind."""
    return [attributes[(number + step) % 5] for step in (0, 1, 3)]


def chosen_options(options: dict[str, list[str]], number: int) -> Any:
    """Options with and without images; empty text and null where there are none, as the official files have them."""
    if number == 4:
        return ""
    found: dict[str, Any] = {
        name: [
            {
                "value": f" {value}",
                "image": f"https://images.example/{place}.jpg",
                "url": None,
                "is_selected": not place,
            }
            for place, value in enumerate(values)
        ]
        for name, values in options.items()
    }
    if number == 1:
        found = {name: [{"value": one["value"]} for one in values] for name, values in found.items()}
    return {**found, "Pattern": None}


def asin(place: int, number: int) -> str:
    return f"B0{place}{number}STANDIN"[:10]


def attributes() -> dict[str, Any]:
    """Attributes of all but one product, and an instruction of a few, as WebShop's authors made them."""
    found: dict[str, Any] = {}
    for place, (kind, (_, _, names, _)) in enumerate(KINDS.items()):
        for number in range(5):
            has = own_attributes(names, number)
            found[asin(place, number)] = {
                "attributes": [*has, kind],
                "instruction": None,
                "instruction_attributes": None,
            }
            if number in (1, 4):
                wish = {"instruction": f"find me a {has[1]} {kind}", "instruction_attributes": has[1:2]}
                found[asin(place, number)].update(wish)
    del found[asin(7, 2)]
    return found


WORDINGS = (
    "i am looking for a {kind}, {attributes}{options}.",
    "i need one {kind} with {attributes}{options}",
)


def instructions() -> dict[str, list[dict[str, Any]]]:
    """Sixty instructions with attributes and eight without, by product."""
    found: dict[str, list[dict[str, Any]]] = {}
    for place, (kind, (_, _, names, options)) in enumerate(KINDS.items()):
        for number in range(4):
            has = own_attributes(names, number)
            values = [choices[(number + at) % len(choices)] for at, choices in enumerate(options.values())]
            values = [value.replace("/", " | ").lower() for value in values]
            rows = []
            for turn, wording in enumerate(WORDINGS):
                if (place, turn) == (3, 1):  # the sixty
                    continue
                wanted = values[: 2 - turn]
                wishes = has[:: 1 + turn]
                words = "".join(f", in {value}" for value in wanted)
                rows.append(
                    {
                        "asin": asin(place, number),
                        "instruction": wording.format(kind=kind, attributes=" and ".join(wishes), options=words),
                        "attributes": [*has, kind],
                        "options": [f"option: {value}" for value in wanted],
                        "instruction_attributes": wishes,
                        "instruction_options": wanted,
                        "assignment_id": f"assignment-{place}-{number}-{turn}",
                        "worker_id": f"worker-{turn}",
                    }
                )
            found[asin(place, number)] = rows
        found[asin(place, 0)].append({**found[asin(place, 0)][0], "instruction_attributes": []})
    found["B0ELSEWHER"] = [
        {"instruction": "buy what is not here", "instruction_attributes": ["x"], "instruction_options": []}
    ]
    return found


def write(folder: Path, size: str = "", **changed: Any) -> Path:
    """Write the three files. size: "_1000" for the small set. changed: products, attributes or human, as they are."""
    for name, file, content in (
        ("products", f"items_shuffle{size}.json", products),
        ("attributes", f"items_ins_v2{size}.json", attributes),
        ("human", "items_human_ins.json", instructions),
    ):
        (folder / file).write_text(json.dumps(changed[name] if name in changed else content()), encoding="utf-8")
    return folder
