"""WebShop's files: what is read of them, which goals they make, and how they are fetched."""

from __future__ import annotations

import contextlib
import json
import random
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from agentgym import registry
from agentgym.errors import ConfigError, MissingDependency
from agentgym.tasks import Task
from agentgym_environments.benchmarks.webshop import fetch
from agentgym_environments.benchmarks.webshop.env import WebShop
from agentgym_environments.tasks.webshop import prices, read_array, read_products, split_goals

from . import webshop_files
from .webshop_files import asin

pytest.importorskip("thefuzz", reason="thefuzz is not installed: pip install 'turngym[webshop]'")


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> str:
    return str(webshop_files.write(tmp_path_factory.mktemp("webshop")))


def make(data: str, **arguments) -> WebShop:
    env = registry.make("webshop", data=data, **arguments)
    assert isinstance(env, WebShop)
    return env


# Files.


def test_products_are_read_as_webshop_reads_them(data):
    products = make(data).catalogue.products
    assert len(products) == 40
    assert [len(number) for number in products] == [10] * 40
    lamps = [products[asin(0, number)] for number in range(5)]
    assert [lamp.prices for lamp in lamps] == [(18.49,), (100.0,), (24.0, 39.99), (1249.0,), (63.2,)]
    assert [lamp.price_text for lamp in lamps[1:4]] == ["$100.0", "$24.0 to $39.99", "$1249.0"]
    assert 24 <= lamps[2].price <= 39.99
    assert lamps[0].options == (
        ("color", ("black", "silver | white", "rose gold")),
        ("style", ("with plug", "battery")),
    )
    assert lamps[1].options == lamps[0].options
    assert lamps[4].options == ()
    assert lamps[1].name == "Tessmore Desk Lamp No. 3"
    assert len(lamps[3].bullets) == 1
    assert lamps[0].query == "desk lamps"
    assert products[asin(7, 2)].attributes == ("DUMMY_ATTR",)
    assert "color: black, silver | white, rose gold, and style: with plug" in lamps[0].contents
    assert "touch control" not in lamps[0].contents  # only the first feature is searched


@pytest.mark.parametrize(
    ("pricing", "found"),
    [
        (None, (100.0,)),
        ("", (100.0,)),
        ("$7.50", (7.5,)),
        ("$7.50$9.00", (7.5, 9.0)),
        ("$7.50 - $9.00", (7.5, 9.0)),
        ("$1,007.50 to $2,000.00", (1007.5, 2000.0)),
        ("US$3.00 ($1.50 / Ounce)", (3.0, 1.5)),
        ("$1.00$2.00$3.00", (1.0, 2.0)),
    ],
)
def test_forms_of_prices(pricing, found):
    assert prices(pricing, "a file") == found


def test_products_out_of_range_of_prices_are_in_order(tmp_path):
    records = [{**webshop_files.products()[0], "pricing": "$9.00$7.00"}]
    (tmp_path / "x.json").write_text(json.dumps(records))
    (found,) = read_products(tmp_path / "x.json", {})
    assert 7 <= found.price <= 9


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"pricing": "call us"}, "product 1: pricing 'call us' holds no price"),
        ({"pricing": "$1.2.3"}, "holds no price, such as"),
        ({"name": None}, "product 1 has no name"),
        ({"customization_options": ["Color"]}, "customization_options is no object of arrays of values"),
        ({"customization_options": {"Color": [{"image": "x"}]}}, "customization_options is no object"),
        ({"asin": 7}, "an object with an asin is expected"),
    ],
)
def test_a_record_that_is_no_product(tmp_path, change, problem):
    path = tmp_path / "x.json"
    path.write_text(json.dumps([{**webshop_files.products()[0], **change}]))
    with pytest.raises(ConfigError, match=problem):
        list(read_products(path, {}))


def test_fields_without_a_value(tmp_path):
    path = tmp_path / "x.json"
    names = ("full_description", "small_description", "pricing", "customization_options", "product_category")
    empty = dict.fromkeys(names)
    path.write_text(json.dumps([{**webshop_files.products()[0], **empty}]))
    (found,) = read_products(path, {})
    assert (found.description, found.bullets, found.prices, found.options) == ("", (), (100.0,), ())
    assert (found.product_category, found.category) == ("", "a")


def test_an_array_is_read_piece_by_piece(tmp_path, monkeypatch):
    monkeypatch.setattr("agentgym_environments.tasks.webshop.CHUNK", 7)
    path = tmp_path / "x.json"
    elements = [{"a": "]},["}, {"b": [1, {"c": "ü\\"}]}, {}]
    for text in (
        json.dumps(elements),
        json.dumps(elements, indent=2),
        f"  {json.dumps(elements, ensure_ascii=False)}\n",
    ):
        path.write_text(text, encoding="utf-8")
        assert list(read_array(path)) == elements


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"B0": {}}', "should be an array of products"),
        ("", "should be an array"),
        ('[{"asin": "B0"}, {"as', "is cut off or not JSON: .*; fetch it anew"),
        ("[{}", "is cut off"),
        ('[{"asin": B0}]', "is cut off or not JSON"),
    ],
)
def test_a_file_that_is_no_array_of_products(tmp_path, text, problem):
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=problem):
        list(read_array(path))


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"human": []}, "items_human_ins.json should be an object by product number, it is list"),
        ({"human": {}}, "items_human_ins.json has no goal for the products of"),
        ({"human": {asin(0, 0): [{"instruction": "buy it"}]}}, f"{asin(0, 0)}: an instruction has instruction, "),
        ({"products": {}}, "items_shuffle.json should be an array of products"),
    ],
)
def test_other_files_are_refused(tmp_path, changed, problem):
    with pytest.raises(ConfigError, match=problem):
        make(str(webshop_files.write(tmp_path, **changed)))


# Goals.


def test_goals_are_in_webshops_order(data):
    """The order of the products, without instructions that have no attributes, shuffled as WebShop does."""
    wishes, known = webshop_files.instructions(), make(data).catalogue.products
    names = [
        f"{one}-{n}" for one in known for n, wish in enumerate(wishes.get(one, ())) if wish["instruction_attributes"]
    ]
    random.seed(233)
    random.shuffle(names)
    env = make(data)
    assert env.env_spec.splits == {"test": 60}
    assert [env.tasks["test", task].id for task in range(60)] == names
    assert env.env_spec.task_set.startswith("sha256:")


def test_goals_are_split_as_webshop_splits_them():
    goals = [Task(id=str(number), prompt="p") for number in range(1600)]
    splits = split_goals(goals)
    assert {split: len(tasks) for split, tasks in splits.items()} == {"train": 100, "validation": 1000, "test": 500}
    assert len({task.id for tasks in splits.values() for task in tasks}) == 1600
    assert list(split_goals(goals[:501])) == ["validation", "test"]
    assert [task.id for task in split_goals(goals[:500])["test"]] != [task.id for task in goals[:500]]


def test_price_limits_are_drawn_as_in_webshop(data):
    """Of the four multiples of ten above the price two are drawn, and the greater is the limit."""
    env = make(data)
    limits = set()
    for place in range(60):
        task = env.tasks["test", place]
        price, limit = env.catalogue.products[task.grader["asin"]].price, task.grader["price_upper"]
        if price >= 980:
            assert (limit, "dollars" in task.prompt) == (1_000_000, False)
            continue
        steps = (limit - price // 10 * 10) / 10
        limits.add(steps)
        assert 2 <= steps <= 4
        assert task.prompt.endswith(f", and price lower than {limit:.2f} dollars")
        assert not task.prompt.partition(", and price")[0].endswith(".")
    assert limits == {2, 3, 4}


def test_synthetic_goals_have_every_combination_of_options(data):
    env = make(data, goals="synthetic")
    lamps = [env.tasks["test", n] for n in range(env.env_spec.splits["test"])]
    lamps = [task for task in lamps if task.grader["asin"] == asin(0, 1)]
    assert len(lamps) == 6
    assert sorted(task.grader["options"] for task in lamps)[0] == ["black", "battery"]
    texts = {task.prompt.partition(", and price")[0] for task in lamps}
    assert "find me a usb port desk lamp with color: rose gold, and style: battery" in texts
    assert env.tasks.content_hash != make(data).tasks.content_hash


def test_the_small_set_has_files_of_its_own(tmp_path):
    env = make(str(webshop_files.write(tmp_path, "_1000")), size="small")
    assert env.env_spec.splits == {"test": 60}
    with pytest.raises(ConfigError, match=r"needs items_shuffle.json, items_ins_v2.json of WebShop in "):
        make(str(tmp_path))


# The data.


def test_without_its_files_the_command_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(Path, "expanduser", lambda path: tmp_path / "home")
    command = "python -m agentgym_environments.benchmarks.webshop.fetch"
    with pytest.raises(MissingDependency, match=rf"needs items_shuffle.json, .*, items_human_ins.json .*: {command}$"):
        registry.make("webshop")
    with pytest.raises(ConfigError, match=rf": {command} --size small /nowhere$"):
        registry.make("webshop", data="/nowhere", size="small")


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"size": "big"}, "webshop: size is all or small, not 'big'"),
        ({"goals": "mine"}, "goals is human or synthetic"),
        ({"observation": "html"}, "observation is text or text_rich, not 'html'"),
        ({"show_attributes": "yes"}, "show_attributes is true or false"),
    ],
)
def test_arguments_are_checked(data, arguments, problem):
    with pytest.raises(ConfigError, match=problem):
        make(data, **arguments)


@contextlib.contextmanager
def drive(files: Mapping[str, bytes], kind: str = "application/octet-stream") -> Iterator[str]:
    """A server that answers as Google Drive's download page does."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            content = files.get(self.path.partition("id=")[2].partition("&")[0])
            self.send_response(200 if content is not None else 404)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content or b"")))
            self.end_headers()
            self.wfile.write(content or b"")

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/download"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_files_are_fetched_once(tmp_path, data):
    files = {fetch.IDS[path.name]: path.read_bytes() for path in Path(data).iterdir()}
    with drive(files) as url:
        paths = fetch.fetch(tmp_path / "new", "all", url)
        assert sorted(path.name for path in (tmp_path / "new").iterdir()) == sorted(path.name for path in paths)
        paths[0].write_text("[]")
        assert fetch.fetch(tmp_path / "new", "all", url)[0].read_text() == "[]"
    assert len(paths) == 3
    assert make(str(webshop_files.write(tmp_path / "new"))).env_spec.splits == {"test": 60}


@pytest.mark.parametrize(
    ("files", "kind", "problem"),
    [
        ({}, "text/plain", r"HTTPStatusError: .*404"),
        (
            {name: b"<html>" for name in fetch.IDS.values()},
            "text/html; charset=utf-8",
            "Google Drive answers with a page",
        ),
    ],
)
def test_a_file_that_cannot_be_fetched(tmp_path, files, kind, problem):
    with drive(files, kind) as url, pytest.raises(ConfigError, match=problem) as found:
        fetch.fetch(tmp_path, "small", url)
    assert f"open {fetch.VIEW}{fetch.IDS['items_shuffle_1000.json']} in a browser and save it as" in str(found.value)
    assert list(tmp_path.iterdir()) == []
