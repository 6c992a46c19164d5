"""The live page of `holdfast serve`, and its REST API.

`jobs` reads storage: what is new since the last time. `drivers` reads the metrics of running drivers. `answers` has the values of the API, `routes` the API itself,
which `openapi` describes. `access` decides who may read. `live_page.js` draws the page with the API.
Start with `routes`.
"""

from holdfast.cli.server.access import Access
from holdfast.cli.server.drivers import check_driver
from holdfast.cli.server.jobs import Jobs
from holdfast.cli.server.routes import application

__all__ = ["Access", "Jobs", "application", "check_driver"]
