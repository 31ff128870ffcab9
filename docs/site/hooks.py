"""Hooks of MkDocs: what the site has that the pages alone do not.

- Links from a page to a file of the repository: the file is copied into the site.
- Mermaid, for pages with a diagram, and a script of the search, from build/docs.
- The list of versions, from which the site's version menu is made.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tomllib
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
#: Scripts that Material would load from another host.
SCRIPTS = ROOT / "build" / "docs"
_WORKER = "https://unpkg.com/iframe-worker/shim"
_LINK = re.compile(r"(?<=\]\()([^)\s#:]+)(?=[)#])")
#: Pages that a search lists before or behind others.
_BOOSTS = {"reference/errors": 4.0, "reference/api-": 0.1, "-names.md": 0.1}
#: Files of the repository that pages link to, by their paths in it.
_linked: set[str] = set()


def on_config(config: Any) -> Any:
    """Build into a folder named by the version."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    config["site_dir"] = str(ROOT / "build" / "site" / project["version"])
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the OpenAPI document, which lies outside docs/."""
    path = "reference/openapi.yaml"
    files.append(File.generated(config, path, abs_src_path=str(ROOT / "openapi.yaml")))
    return files


def on_page_markdown(text: str, page: Any, **_: Any) -> str:
    """Point links to files outside docs/ at their copies in the site."""
    folder = (DOCS / page.file.src_uri).parent
    for name, boost in _BOOSTS.items():
        if name in page.file.src_uri:
            page.meta["search"] = {"boost": boost}

    def point(link: re.Match[str]) -> str:
        target = Path(os.path.normpath(folder / link[1]))
        if target.is_relative_to(DOCS) or not target.is_relative_to(ROOT):
            return link[1]
        if not target.exists():
            raise PluginError(f"{page.file.src_uri} links to {link[1]}: no such file")
        if (target / "README.md").is_file():
            target /= "README.md"
        path = target.relative_to(ROOT).as_posix()
        _linked.add(path)
        depth = page.file.src_uri.count("/")
        # A scheme of ours keeps MkDocs from looking for the file in docs/.
        return f"repository:{'../' * depth}repository/{path}.txt"

    return _LINK.sub(point, text)


def on_page_content(html: str, **_: Any) -> str:
    """Remove the scheme that kept MkDocs from checking the links above."""
    return html.replace('href="repository:', 'href="')


def on_post_page(html: str, page: Any, **_: Any) -> str:
    """Load scripts from the site: Mermaid only if the page has a diagram."""
    base = "../" * page.file.dest_uri.count("/")
    html = html.replace(_WORKER, f"{base}assets/iframe-worker.js")
    if 'class="mermaid"' not in html:
        return html
    script = f'<script src="{base}assets/mermaid.min.js"></script>\n'
    return re.sub(r'(?=<script src="[^"]*bundle)', script, html, count=1)


def on_post_build(config: Any) -> None:
    """Copy what the pages link to, and write the list of versions."""
    site = Path(config["site_dir"])
    for path in sorted(_linked):
        target = site / "repository" / f"{path}.txt"
        target.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / path).is_dir():
            target.write_text("".join(f"{p.name}\n" for p in (ROOT / path).iterdir()))
        else:
            shutil.copyfile(ROOT / path, target)
    for script in ("mermaid.min.js", "iframe-worker.js"):
        shutil.copyfile(SCRIPTS / script, site / "assets" / script)
    missing = site / "404.html"
    missing.write_text(missing.read_text().replace(_WORKER, "assets/iframe-worker.js"))
    versions = sorted(p.name for p in site.parent.iterdir() if p.is_dir())
    listed = [{"version": v, "title": v, "aliases": []} for v in reversed(versions)]
    (site.parent / "versions.json").write_text(json.dumps(listed))
    page = f'<meta http-equiv="refresh" content="0; url={site.name}/index.html">\n'
    (site.parent / "index.html").write_text(page)
