"""`Reloading`: the files of settings that a running server reads again."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from app.config.config_keys import KeyProblem
from app.config.file_modes import exposure_of
from app.config.log_config import read_log_config
from app.observe.journal import Journal
from app.observe.log import LogControl, LogSettings
from app.other_processes import OtherProcesses
from app.serving.keys import Keys
from app.settings import Settings

logger = logging.getLogger(__name__)

# Seconds between checks of the key file.
KEYS_LOOK = 1.0


@dataclass(eq=False, repr=False)
class Reloading:
    """Reads the key file when it changes, and the log settings on request. For the
    event loop's thread.
    """

    _settings: Settings
    _keys: Keys
    _log: LogControl
    _journal: Journal
    _others: OtherProcesses
    _requested: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _when_done: list[Callable[[], None]] = field(default_factory=list, init=False)
    _watch: asyncio.Task[None] | None = field(default=None, init=False)

    def start(self) -> None:
        """Read the log settings, and watch the key file from now on."""
        self._read_log_config()
        self._warn_of_modes()
        if self._keys.path is not None:
            self._watch = asyncio.get_running_loop().create_task(self._watch_keys())

    def stop(self) -> None:
        """Watch no more."""
        if self._watch is not None:
            self._watch.cancel()

    def request(self, when_done: Callable[[], None] = lambda: None) -> None:
        """Check now whether keys have changed, and read the file of log settings."""
        self._read_log_config()
        if self._watch is None:
            when_done()
            return
        self._when_done.append(when_done)
        self._requested.set()

    async def _watch_keys(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._requested.wait(), KEYS_LOOK)
            self._requested.clear()
            done, self._when_done = self._when_done, []
            # Not in a thread that loads models, because the read could wait for loads.
            config = None
            try:
                config = await asyncio.to_thread(self._keys.read_again)
            except Exception:  # no thread is left, for example; the next check comes
                logger.exception("the keys could not be checked for changes")
            if config is not None:
                self._keys.take_over(config)
                self._warn_of_modes()
            for call in done:
                call()

    def _warn_of_modes(self) -> None:
        """Warn of the files of secrets that other users can read or write."""
        settings = self._settings
        for option, path in (
            ("--keys", settings.keys),
            ("--tls-key", settings.tls_key or settings.tls_cert),
        ):
            why = "" if path is None else exposure_of(path)
            if why:
                msg = "%s (%s): %s; let only the server's user read it: chmod 600"
                logger.warning(msg, path, option, why)

    def _read_log_config(self) -> None:
        """Read the log configuration. An unreadable or invalid file changes nothing."""
        path = self._settings.log_config
        if path is None:
            return
        try:
            config = read_log_config(path)
        except (OSError, KeyProblem) as e:
            logger.error("%s was not reloaded: %s", path, e)
            return
        level = config.log_level or self._settings.log_level
        self._log.apply(
            replace(LogSettings.of_level(level), format=self._log.settings.format)
        )
        access = config.access_log or self._settings.access_log
        self._journal.set_access(access)
        self._others.access_changed(access)
