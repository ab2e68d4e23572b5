"""The shop as a web application: pages made on the server, links and forms, no JavaScript.

`application` needs FastAPI (extra "shop"). A customer is known by a cookie, which `/enter/TOKEN` sets; who has none is
shown out. Nothing that a browser sends can do what the state machine does not allow.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlencode

from agentgym_environments.synthetic.shop.goals import ShoppingGoal
from agentgym_environments.synthetic.shop.shop import Event, EventRefused, State, go
from agentgym_environments.synthetic.shop.views import ListingGroup, PageView, Press, view

if TYPE_CHECKING:
    from fastapi import FastAPI

COOKIE = "customer"
FRESH = {"Cache-Control": "no-store"}
"""Going back asks again, so that the shop knows where its customer is."""
FORM = 4096
"""Most bytes of a form."""

STYLE = """
body { font: 15px/1.4 sans-serif; margin: 0 auto; max-width: 46em; padding: 0 1em; color: #222; }
header { border-bottom: 1px solid #ccc; padding: .6em 0; } header form { display: inline; } nav a { margin-right: 1em; }
h1 { font-size: 1.3em; } p { margin: .5em 0; } a { color: #0645ad; } button { padding: .2em .8em; margin-right: .5em; }
"""


@dataclass
class Customer:
    """A session: what is wanted, for the streets of the account and the score, and the state so far."""

    goal: ShoppingGoal
    state: State = field(default_factory=State)


def application(customers: dict[str, Customer]) -> FastAPI:
    """The application for those customers, by token; the dict may change while it runs."""
    from fastapi import FastAPI, Request
    from fastapi.responses import HTMLResponse, RedirectResponse, Response

    app = FastAPI(title="Corner Shop", docs_url=None, redoc_url=None, openapi_url=None)

    def enter(token: str) -> Response:
        answer = RedirectResponse("/", 303)
        answer.set_cookie(COOKIE, token, httponly=True, samesite="strict")
        return answer

    async def visit(request: Request, path: str = "") -> Response:
        customer = customers.get(request.cookies.get(COOKIE, ""))
        if customer is None:
            return HTMLResponse("no such customer", 403)
        body = (await request.body())[:FORM].decode(errors="replace") if request.method == "POST" else ""
        try:
            event = event_of(path, dict(request.query_params))
            state = submit(go(customer.state, event), dict(parse_qsl(body))) if body else go(customer.state, event)
        except EventRefused as refused:
            return HTMLResponse(page(customer.state, customer.goal, str(refused)), 409, headers=FRESH)
        customer.state = state
        if request.method == "POST" and not state.ordered:
            return RedirectResponse(url_of(here(state)), 303)
        return HTMLResponse(page(state, customer.goal), headers=FRESH)

    # Annotations are strings here, and FastAPI would look for their names in the module.
    enter.__annotations__, visit.__annotations__ = {"token": str}, {"request": Request, "path": str}
    app.add_api_route("/enter/{token}", enter, response_class=RedirectResponse)
    app.add_api_route("/{path:path}", visit, methods=["GET", "POST"], response_class=HTMLResponse)
    return app


def event_of(path: str, query: dict[str, str]) -> Event:
    """Return what asking for a page does. Raises EventRefused where there is none."""
    head, _, tail = path.partition("/")
    if head == "search" and not tail:
        return ("search", query.get("q", ""), query.get("page", "1"))
    if head == "product":
        return ("product", tail)
    if head in ("", "basket", "checkout", "account") and not tail:
        return (head or "home",)
    raise EventRefused("there is no such page")


def url_of(event: Event) -> str:
    """The page that a link leads to; the reverse of `event_of`."""
    verb, *rest = event
    if verb == "search":
        return f"/search?{urlencode(dict(zip(('q', 'page'), rest)))}"
    return {"home": "/", "product": f"/product/{''.join(rest)}"}.get(verb, f"/{verb}")


def here(state: State) -> Event:
    """Return what leads to the page that a customer is on."""
    if state.page == "results":
        return ("search", state.query, str(state.number))
    return ("product", str(state.product)) if state.page == "product" else (state.page,)


def submit(state: State, form: dict[str, str]) -> State:
    """The state after a form: what was chosen, then the button. Raises EventRefused, all of it or nothing."""
    does = form.pop("do", "save")
    for name, value in form.items():
        state = go(state, ("choose", name, value))
    verb, _, line = does.partition("-")
    if verb == "save":
        return state
    if verb not in ("add", "buy", "remove", "order"):
        raise EventRefused(f"there is no button {verb}")
    return go(state, (verb, line) if line else (verb,))


def page(state: State, goal: ShoppingGoal, problem: str = "") -> str:
    """HTML."""
    current = view(state, goal)
    problem = f"<p><strong>{escape(problem)}</strong></p>" if problem else ""
    head = f'<meta charset="utf-8"><title>{escape(current.title)}</title><link rel="icon" href="data:,">'
    head = f"<head>{head}<style>{STYLE}</style></head>"
    top = "" if state.ordered else f"<header>{_search(state.query)}{_links(current.links)}</header>"
    return f'<!doctype html><html lang="en">{head}<body>{top}{problem}<main>{_main(current)}</main></body></html>'


def _main(current: PageView) -> str:
    texts = "".join(f"<p>{escape(text)}</p>" for text in current.texts)
    return f"<h1>{escape(current.title)}</h1>{texts}{''.join(map(_entry, current.entries))}{_form(current)}"


def _search(query: str) -> str:
    box = f'<input type="search" name="q" aria-label="Search" maxlength="200" value="{escape(query)}">'
    return f'<form action="/search" autocomplete="off">{box} <button>Search</button></form>'


def _links(links: tuple[Press, ...]) -> str:
    found = "".join(f'<a href="{escape(url_of(one.event))}">{escape(one.label + one.note)}</a>' for one in links)
    return f"<nav>{found}</nav>"


def _entry(entry: Press) -> str:
    return f'<p><a href="{escape(url_of(entry.event))}">{escape(f"{entry.label} {entry.note}")}</a></p>'


def _form(current: PageView) -> str:
    """Lists to choose in and buttons, which send what is chosen along."""
    if not current.groups and not current.buttons:
        return ""
    buttons = [("-".join(button.event), button.label) for button in current.buttons] or [("save", "Save")]
    pressed = "".join(f'<button name="do" value="{does}">{escape(label)}</button>' for does, label in buttons)
    return f'<form method="post" autocomplete="off">{"".join(map(_group, current.groups))}<p>{pressed}</p></form>'


def _group(group: ListingGroup) -> str:
    options = "".join(
        f"<option{' selected' if value == group.chosen else ''}>{escape(value)}</option>" for value in group.values
    )
    name = escape(group.name)
    return f'<p><label for="{name}">{name}</label> <select id="{name}" name="{name}">{options}</select></p>'
