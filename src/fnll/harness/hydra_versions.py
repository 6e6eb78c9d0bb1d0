"""What Hydra 1.4 and later do differently, in one place; 1.3.8, which we run with, has the older way for each.

- Plugins are registered by us: Hydra 1.4 gives up scanning the namespace `hydra_plugins`, which also imported ours into
  every other Hydra application of the environment.
- `version_base` is no longer given from 1.4 on.
- What `_partial_: true` gives may be another type than `functools.partial`; the rest of fnll sees only the latter.
"""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import hydra
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.plugins import Plugins
from hydra.plugins.search_path_plugin import SearchPathPlugin

from fnll.harness import choices


def _version_base(version: str) -> dict[str, str]:
    found = re.match(r"(\d+)\.(\d+)", version)
    newer = found is not None and (int(found[1]), int(found[2])) >= (1, 4)
    return {} if newer else {"version_base": "1.3"}


VERSION_BASE: dict[str, Any] = _version_base(hydra.__version__)  # for `hydra.main` and `initialize_config_dir`


class PluginFolders(SearchPathPlugin):
    """Appends the config folders of installed plugins, behind ours.

    A package takes part through an entry point:

        [project.entry-points."fnll.configs"]
        my_package = "my_package:configs"      # the folder `configs` inside the importable package `my_package`
    """

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Add one entry per installed plugin."""
        for name, folder in choices.plugin_dirs().items():
            search_path.append(provider=f"fnll plugin {name}", path=f"file://{folder}")


def register_plugins() -> None:
    """Let Hydra know of plugins' folders, in this process; to be called before it composes. Again does nothing."""
    Plugins.instance().register(PluginFolders)


def as_partial(made: Any) -> Any:
    """What Hydra made, with `functools.partial` for everything unfinished in it, at every depth."""
    if callable(made) and hasattr(made, "func") and hasattr(made, "keywords"):
        settings = {name: as_partial(value) for name, value in made.keywords.items()}
        return partial(made.func, *made.args, **settings)
    if type(made) is list:
        return [as_partial(value) for value in made]
    if type(made) is dict:
        return {name: as_partial(value) for name, value in made.items()}
    return made
