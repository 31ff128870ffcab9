"""PopGate on Ray Serve: every replica is a gateway with its own devices.

Ray Serve places replicas on machines, sends requests to them and changes their number.
PopGate handles requests, batches and devices.

    # serve_config.yaml, for `serve deploy`
    applications:
      - name: popgate
        import_path: popgate_ray:application
        args: {model_repository: /models}
        deployments:
          - name: popgate
            num_replicas: 2
            ray_actor_options: {num_cpus: 2}

`args` are settings (`app.settings.Settings`), the rest are Ray's own options. This
module needs the extra `popgate[ray]`.
"""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from app.assembly import gateway_of
from app.errors import HttpError
from app.gateway import Gateway
from app.http.access import Access, key_group
from app.http.asgi import ASGIApp, Message, Receive, Scope, Send
from app.main import create_app
from app.observe.request_ids import HEADER
from app.server_process import prepare_process
from app.serving.keys import Key
from app.serving.stateful import StatefulScheduler
from app.settings import Settings
from engine import DeviceState
from popgate_ray.saturation import TARGET_UTILIZATION, Utilization, replicas_wanted

try:
    import ray
    from ray import serve
    from ray.serve.config import BackpressureConfig
except ImportError as e:  # pragma: no cover
    msg = f"popgate_ray needs Ray Serve (pip install 'popgate[ray]'): {e}"
    raise ImportError(msg) from e

logger = logging.getLogger(__name__)

#: Most requests of a replica at the same time. Ray's default, 5, would limit batches to
#: 5 requests. A gateway refuses requests beyond its queue with 429.
MOST_ONGOING = 256
#: Requests that wait in a proxy for a replica. The proxy refuses more with 429 at once.
MOST_QUEUED = 1024
#: Seconds between checks of a replica's health. Ray replaces a dead replica at the next
#: check; its default is 10 s.
HEALTH_PERIOD = 1.0
#: Timeout of a check in seconds. After three timeouts Ray ends the replica.
HEALTH_TIMEOUT = 10.0
#: Seconds without any living device until a replica counts as unhealthy. A restart of a
#: device takes less.
WITHOUT_DEVICES = 10.0

#: Modes that depend only on the folder, which all replicas see.
_MODES = ("poll", "none")
_ADVICE = (
    "this call reaches only one replica; change the model repository, which "
    "all replicas poll (model_control_mode: poll), or deploy again with other "
    "settings"
)
_SAMPLE = re.compile(rb"^([a-zA-Z_:][a-zA-Z0-9_:]*)(\{)?(?=.)", re.MULTILINE)


def replica_settings(
    args: Mapping[str, Any], *, cpus: float = 1, gpus: int = 0
) -> Settings:
    """Return the settings of a replica with these numbers of processors and GPUs.

    `args` override the environment (``POPGATE_*``). By default models come from the
    polled folder. A replica with GPUs has a device for each, any other one CPU device.
    Models use all threads of the replica except one for HTTP. Raises ValueError for
    invalid settings, and for settings that would apply to one replica only.
    """
    stated = Settings(**args).model_fields_set
    wanted = dict(args)
    defaults = {
        "model_control_mode": "poll",
        "devices": f"cuda:0-{gpus - 1}" if gpus else "cpu:1",
        "threads": max(1, int(cpus) - 1),
    }
    wanted |= {key: value for key, value in defaults.items() if key not in stated}
    settings = Settings(**wanted)
    if settings.model_control_mode not in _MODES:
        msg = (
            f"model_control_mode is {settings.model_control_mode!r}, in which "
            "a request changes only one replica; Ray Serve needs one of "
            f"{_MODES}"
        )
        raise ValueError(msg)
    if settings.allow_shared_memory:
        msg = (
            "allow_shared_memory requires clients on the same machine, but "
            "Ray Serve's replicas may run on any; leave it out"
        )
        raise ValueError(msg)
    return settings


class ReplicaAccess(Access):
    """Refuse calls that would change only one of several replicas."""

    def check(
        self,
        path: str,
        method: str,
        headers: Mapping[bytes, bytes],
        client: str | None,
        names: Sequence[str] = (),
    ) -> Key | None:
        if method == "POST" and key_group(path, method) == "manage":
            raise HttpError(503, _ADVICE, "model_control")
        return super().check(path, method, headers, client, names)


class ReplicaFront:
    """The application as Ray's proxies need it.

    Ray adds an `x-request-id` to each answer, so the gateway's equal one is left out.
    Ray sends each scrape to some replica, so `/metrics` names the replica: without the
    label, the numbers of several would look like one counter that goes up and down.
    """

    def __init__(self, app: ASGIApp, replica: str) -> None:
        self._app = app
        self._label = b'\\1{replica="%s"' % replica.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        is_metrics = scope["path"].endswith("/metrics")
        rest = b""

        async def send_to_proxy(message: Message) -> None:
            nonlocal rest
            if message["type"] == "http.response.start":
                headers = [h for h in message["headers"] if h[0] != HEADER]
                message = {**message, "headers": headers}
            elif is_metrics:
                text, newline, rest = (rest + message["body"]).rpartition(b"\n")
                if not message.get("more_body", False):
                    text, newline, rest = text + newline + rest, b"", b""
                message = {**message, "body": _SAMPLE.sub(self._add, text) + newline}
            await send(message)

        await self._app(scope, receive, send_to_proxy)

    def _add(self, sample: re.Match[bytes]) -> bytes:
        return sample.expand(self._label) + (b"," if sample[2] else b"}")


class GatewayReplica:
    """A gateway as a replica of Ray Serve, which makes it and sends it requests."""

    def __init__(self, args: Mapping[str, Any]) -> None:
        """Raise ValueError for settings that are not allowed (`replica_settings`)."""
        context = serve.get_replica_context()
        self.tag: str = context.replica_tag
        # Ray has already divided the machine, so replicas take nothing from each other.
        os.environ["POPGATE_POOL"] = f"ray-{self.tag}"
        os.environ.setdefault("POPGATE_SPIN_US", "0")
        runtime = ray.get_runtime_context()
        settings = replica_settings(
            args,
            cpus=runtime.get_assigned_resources().get("CPU", 1),
            gpus=len(ray.get_gpu_ids()),
        )
        prepare_process(settings)
        self._problem: Exception | None = None
        self.gateway = gateway_of(settings, on_failed=self._failed)
        self._utilization = Utilization(self.gateway)
        self._alive_at = time.monotonic()
        self._is_checked = False

    def _failed(self, error: Exception) -> None:
        self._problem = error

    def __serve_build_asgi_app__(self) -> ASGIApp:
        front = create_app(gateway=self.gateway)
        front.access = ReplicaAccess(
            self.gateway.settings.restrictions, self.gateway.keys
        )
        return ReplicaFront(front, self.tag)

    async def check_health(self) -> None:
        """Check the health. Called before the first request, then periodically.

        The first time it waits until the models are loaded, so no request reaches a
        replica that still loads. Raises RuntimeError if nothing is served, or no device
        has lived for `WITHOUT_DEVICES` seconds.
        """
        gateway = self.gateway
        await gateway.wait_started()
        if self._problem is not None:
            raise RuntimeError(f"the gateway did not start: {self._problem}")
        if not self._is_checked:
            readiness = gateway.readiness()
            if not readiness.ready:
                failed = "; ".join(f"{k}: {v}" for k, v in readiness.failed.items())
                msg = f"{', '.join(readiness.reasons)} ({failed or 'no models'})"
                raise RuntimeError(msg)
            self._is_checked = True
            for advice in _advice(gateway, _most_ongoing()):
                logger.warning("%s", advice)
        now = time.monotonic()
        states = {device.state for device in gateway.devices.summaries()}
        if DeviceState.READY.value in states:
            self._alive_at = now
        elif now - self._alive_at > WITHOUT_DEVICES:
            msg = f"no device process has run for {now - self._alive_at:.0f} s"
            raise RuntimeError(msg)

    def record_autoscaling_stats(self) -> dict[str, float]:
        """Return the numbers for `ScaleByUtilization`."""
        return {"utilization": self._utilization()}


def _most_ongoing() -> int:
    context = serve.get_replica_context()
    return int(context._deployment_config.max_ongoing_requests)


def _advice(gateway: Gateway, most_ongoing: int) -> Iterable[str]:
    """Yield advice about options that limit the replica."""
    loaded = [
        each for record in gateway.records.all() for each in record.serving.values()
    ]
    largest = max((each.spec.max_batch_size for each in loaded), default=0)
    if most_ongoing < 2 * largest:
        yield (
            f"max_ongoing_requests is {most_ongoing}, too low for batches of "
            f"{largest} requests; set it to {2 * largest} or more"
        )
    for each in loaded:
        scheduler = each.scheduler
        if isinstance(scheduler, StatefulScheduler) and scheduler.has_sequences:
            yield (
                f"model {each.spec.name} has sequences, whose requests must reach "
                "the same replica, but Ray Serve sends requests to any; serve the "
                "model with one replica"
            )


class ScaleByUtilization:
    """An autoscaling policy of Ray Serve. It chooses the number of replicas at which
    each is busy for the share `target` of its time.

        autoscaling_config:
          min_replicas: 1
          max_replicas: 8
          policy:
            policy_function: popgate_ray:ScaleByUtilization
            policy_kwargs: {target: 0.7}

    Ray applies its own delays, factors and limits to the result.
    """

    def __init__(self, target: float = TARGET_UTILIZATION) -> None:
        if not 0 < target <= 1:
            msg = f"target must be a share of time over 0 and up to 1, got {target}"
            raise ValueError(msg)
        self.target = target

    def __call__(self, ctx: Any) -> tuple[float, dict[str, Any]]:
        """Return the number of replicas wanted, as a fraction, and no state."""
        shares = ctx.aggregated_metrics.get("utilization", {}).values()
        if not shares:
            return ctx.target_num_replicas, {}
        return replicas_wanted(shares, self.target), {}


#: The deployment. `deployment.options(...)` accepts all options of Ray Serve.
deployment = serve.deployment(
    serve.ingress()(GatewayReplica),
    name="popgate",
    max_ongoing_requests=MOST_ONGOING,
    max_queued_requests=MOST_QUEUED,
    backpressure_config=BackpressureConfig(status_code=429, retry_after_s=1),
    health_check_period_s=HEALTH_PERIOD,
    health_check_timeout_s=HEALTH_TIMEOUT,
    graceful_shutdown_wait_loop_s=0.5,
    graceful_shutdown_timeout_s=40,
)


def application(args: dict[str, Any]) -> Any:
    """Return the application of a Serve config: `args` are settings of the gateway.

    ``serve.run(application({"model_repository": "/models"}))`` runs it as well. Raises
    ValueError for settings that are not allowed, before anything is deployed.
    """
    replica_settings(args)
    return deployment.bind(dict(args))
