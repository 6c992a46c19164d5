"""Facts of the site that `pyproject.toml` has: the version, the description and the public addresses."""

import tomllib
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig


def on_config(config: MkDocsConfig) -> None:
    """Take the facts from `pyproject.toml`; MkDocs calls this before it builds."""
    pyproject = Path(config.config_file_path).with_name("pyproject.toml")
    use_project(config, tomllib.loads(pyproject.read_text())["project"])


def use_project(config: MkDocsConfig, project: dict[str, Any]) -> None:
    """Show the version in the header; link to the repository and to the source of each page if the address is known."""
    config.site_name = f"{config.site_name} {project['version']}"
    config.site_description = project["description"]
    urls = project.get("urls", {})
    config.site_url = urls.get("Documentation")
    if repository := urls.get("Repository"):
        # Not `repo_url`: with it each page asks the host of the repository for the number of stars.
        config.edit_uri = f"{repository}/edit/main/docs/"
        config.extra["social"] = [
            {"icon": "fontawesome/brands/git-alt", "link": repository, "name": "Source"}
        ]
