"""Pages of the shop: contents and links, apart from how they are drawn; and drawn as plain text."""

from __future__ import annotations

from dataclasses import dataclass

from agentgym_environments.synthetic.shop.catalogue import Product, products, search, wares
from agentgym_environments.synthetic.shop.goals import ShoppingGoal
from agentgym_environments.synthetic.shop.shop import A_PAGE, ADDRESSES, BASKET, Event, State, found, last_page, total


@dataclass(frozen=True)
class Press:
    """A link or a button: its name, what it does, and what is written beside it."""

    label: str
    event: Event
    note: str = ""


@dataclass(frozen=True)
class ListingGroup:
    """Values of which one is chosen."""

    name: str
    values: tuple[str, ...]
    chosen: str


@dataclass(frozen=True)
class PageView:
    title: str
    texts: tuple[str, ...] = ()
    entries: tuple[Press, ...] = ()
    """Links with a note: results, lines of the basket."""
    groups: tuple[ListingGroup, ...] = ()
    buttons: tuple[Press, ...] = ()
    """They change the basket or place the order."""
    links: tuple[Press, ...] = ()

    @property
    def presses(self) -> tuple[Press, ...]:
        return (*self.entries, *self.buttons, *self.links)


def view(state: State, goal: ShoppingGoal) -> PageView:
    """The page that a customer sees. The goal gives only the streets of the addresses."""
    return {
        "home": _home,
        "results": _results,
        "product": _product,
        "basket": _basket,
        "checkout": _checkout,
        "account": _account,
        "thanks": _thanks,
    }[state.page](state, goal)


def plain(current: PageView) -> str:
    """A page as text: what is in square brackets can be clicked."""
    lines = [f"== {current.title} ==", *current.texts]
    lines += [f"[{entry.label}] {entry.note}" for entry in current.entries]
    lines += [_row(group) for group in current.groups]
    if current.buttons:
        lines.append(" ".join(f"[{button.label}]" for button in current.buttons))
    lines.append(" ".join(f"[{link.label}]{link.note}" for link in current.links))
    return "\n".join(line for line in lines if line)


def euros(cents: int) -> str:
    return f"{cents // 100}.{cents % 100:02} euros"


def _row(group: ListingGroup) -> str:
    return f"{group.name}: " + ", ".join(f"({value})" if value == group.chosen else value for value in group.values)


def _links(state: State, *first: Press) -> tuple[Press, ...]:
    count = f" ({len(state.basket)})" if state.basket else ""
    return (*first, Press("Home", ("home",)), Press("Basket", ("basket",), count), Press("Account", ("account",)))


def _home(state: State, goal: ShoppingGoal) -> PageView:
    categories = ", ".join(category["name"] for category in wares()["categories"])
    texts = (f"Welcome! {len(products())} products: {categories}.", "Search for what you need.")
    return PageView("Corner Shop", texts, links=_links(state))


def _results(state: State, goal: ShoppingGoal) -> PageView:
    shown, count = found(state), len(search(state.query))
    first = (state.number - 1) * A_PAGE + 1
    text = f"{first} to {first + len(shown) - 1} of {count}" if shown else "Nothing was found."
    entries = tuple(_entry(products()[number]) for number in shown)
    turn = []
    if state.number < last_page(state.query):
        turn.append(Press("Next page", ("search", state.query, str(state.number + 1))))
    if state.number > 1:
        turn.append(Press("Previous page", ("search", state.query, str(state.number - 1))))
    return PageView(f"Results for {state.query}", (text,), entries, links=_links(state, *turn))


def _entry(product: Product) -> Press:
    more = "; ".join(feature for feature in product.shown if feature in product.untitled)
    title = f"{product.title} ({more})" if more else product.title
    return Press(product.code, ("product", str(product.number)), f"{title}, {euros(product.cents)}")


def _product(state: State, goal: ShoppingGoal) -> PageView:
    product, chosen = products()[state.product], dict(state.chosen)
    texts = (
        f"{product.kind} by {product.brand}, {product.stars} of 5 stars",
        f"Price: {euros(product.cents)}",
        f"Details: {'; '.join(product.features)}",
    )
    groups = tuple(ListingGroup(name, values, chosen[name]) for name, values in product.options)
    buttons = (Press("Add to basket", ("add",)), Press("Buy now", ("buy",))) if len(state.basket) < BASKET else ()
    back = [Press("Back to results", ("search", state.query, str(state.number)))] if state.query else []
    return PageView(f"{product.code} {product.title}", texts, (), groups, buttons, _links(state, *back))


def _basket(state: State, goal: ShoppingGoal) -> PageView:
    entries, buttons = [], []
    for index, line in enumerate(state.basket):
        product = products()[line.product]
        options = ", ".join(f"{name} {value}" for name, value in line.options)
        entries.append(Press(product.code, ("product", str(product.number)), _sum(product, options)))
        buttons.append(Press(f"Remove {index + 1}", ("remove", str(index + 1))))
    texts = (f"Total: {euros(total(state))}",) if entries else ("Your basket is empty.",)
    links = _links(state, *([Press("Checkout", ("checkout",))] if entries else []))
    return PageView("Basket", texts, tuple(entries), (), tuple(buttons), links)


def _sum(product: Product, options: str) -> str:
    return f"{product.title}, {options}, {euros(product.cents)}"


def _checkout(state: State, goal: ShoppingGoal) -> PageView:
    if not state.basket:
        return PageView("Checkout", ("Your basket is empty.",), links=_links(state))
    street = goal.streets[ADDRESSES.index(state.address)]
    texts = (
        f"Products: {len(state.basket)}",
        f"Total: {euros(total(state))}",
        f"Delivery to {state.address}: {street}. The address can be changed in your account.",
    )
    return PageView("Checkout", texts, buttons=(Press("Place order", ("order",)),), links=_links(state))


def _account(state: State, goal: ShoppingGoal) -> PageView:
    texts = tuple(f"{name}: {street}" for name, street in zip(ADDRESSES, goal.streets))
    chosen = ListingGroup("address", ADDRESSES, state.address)
    return PageView(
        "Account", ("Orders are delivered to the chosen address.", *texts), groups=(chosen,), links=_links(state)
    )


def _thanks(state: State, goal: ShoppingGoal) -> PageView:
    return PageView("Thank you", (f"Your order over {euros(total(state))} is on its way.",))
