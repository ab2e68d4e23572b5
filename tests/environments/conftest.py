"""What all environments of a process share, browsers and the shop's server, ends with each module of tests."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module", autouse=True)
def shared_parts_end() -> Iterator[None]:
    yield
    if browser := sys.modules.get("agentgym_environments.backends.browser.browser"):
        browser.browsers().close()
    if site := sys.modules.get("agentgym_environments.synthetic.shop.site"):
        site.close_site()
