"""Which output plugins a server allows, and the SQL that allows one more. Pure.

Servers from 15.19, 16.15, 17.11 and 18.6 on have a list of them, `output_plugin_libraries`.
"""

from __future__ import annotations

import re

from penstock.errors import OutputPluginNotAllowed
from penstock.names import quote
from penstock.postgres.catalog import ServerFacts
from penstock.printed_sql import PrintedSql, SqlKind, reloaded

# The one that streams.
PLUGIN = "pgoutput"
# What the server allows by default. Roles without pg_read_all_settings do not see what it is now.
_DEFAULT = "pgoutput, test_decoding"
_INSUFFICIENT_PRIVILEGE = "42501"


def check_plugin(server: ServerFacts, plugin: str = PLUGIN) -> None:
    """Raise `OutputPluginNotAllowed` if this server is known to refuse the plugin."""
    if not allows(server, plugin):
        sql = allow_sql(server.output_plugin_libraries, plugin)
        raise _error(plugin, sql.after("Run as a superuser"))


def not_allowed(
    sqlstate: str | None, message: str, plugin: str = PLUGIN
) -> OutputPluginNotAllowed | None:
    """Return the error if that is what the server says; its sentence may be in any language."""
    if sqlstate != _INSUFFICIENT_PRIVILEGE or f'"{plugin}"' not in message:
        return None
    return _error(
        plugin,
        allow_sql(_DEFAULT, plugin).after("Run as a superuser")
        + "\nThese names replace the list, which a superuser sees with SHOW "
        "output_plugin_libraries: add those of other plugins that the server uses",
    )


def _error(plugin: str, remedy: str) -> OutputPluginNotAllowed:
    return OutputPluginNotAllowed(
        f"the server does not allow {plugin} as an output plugin (output_plugin_libraries): no "
        "slot can be made with it, and none can be read",
        remedy=remedy,
        plugin=plugin,
    )


def allows(server: ServerFacts, plugin: str) -> bool:
    """Return whether a slot may use a plugin; true where the server's list is not known."""
    if server.output_plugin_libraries is None:
        return True
    names = _listed(server.output_plugin_libraries)
    return plugin in names or "*" in names


def allow_sql(setting: str | None, plugin: str) -> PrintedSql:
    """Return SQL that adds a plugin to the list: name by name, because the list as one quoted
    string is one name, which allows no plugin at all. Such a name is taken apart.
    """
    listed = _listed(setting or "")
    parts = [part.strip() for name in listed for part in name.split(",")]
    names = ", ".join(map(quote, dict.fromkeys([*filter(None, parts), plugin])))
    return reloaded(SqlKind.OUTPUT_PLUGIN, f"output_plugin_libraries = {names}")


def _listed(setting: str) -> list[str]:
    found = re.findall(r'"((?:[^"]|"")*)"|([^\s,"]+)', setting)
    return [quoted or plain for quoted, plain in found]
