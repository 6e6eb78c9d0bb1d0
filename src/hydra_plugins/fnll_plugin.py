"""Lets Hydra find the configs of installed packages that bring methods, data sets, partitions, noise or models.

Hydra imports every module of the namespace package `hydra_plugins`. A package takes part through an entry point:

    [project.entry-points."fnll.configs"]
    my_package = "my_package:configs"      # the folder `configs` inside the importable package `my_package`
"""

from hydra.core.config_search_path import ConfigSearchPath
from hydra.plugins.search_path_plugin import SearchPathPlugin


class FnllSearchPath(SearchPathPlugin):
    """Appends the config folders of plugins, behind ours."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Add one entry per installed plugin."""
        from fnll.harness.config import plugin_dirs  # late: other Hydra applications must not pay for importing torch

        for name, folder in plugin_dirs().items():
            search_path.append(provider=f"fnll plugin {name}", path=f"file://{folder}")
