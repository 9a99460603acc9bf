# SPDX-License-Identifier: Apache-2.0
"""Flower's calls of an operator: start and stop runs, register nodes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import httpx
from cryptography.hazmat.primitives.serialization import load_ssh_public_key
from flwr.cli.build import build_fab_from_disk
from flwr.cli.cli_client_interceptor import CliClientHttpInterceptor
from flwr.common.serde import fab_to_proto, user_config_to_proto
from flwr.proto.control_pb2 import (
    ListNodesRequest,
    ListRunsRequest,
    RegisterNodeRequest,
    StartRunRequest,
    StopRunRequest,
    UnregisterNodeRequest,
)
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.fab import Fab
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.primitives.asymmetric import public_key_to_bytes

from dpcohort.deploy.flower._adapter import certificate_in, known_key
from dpcohort.errors import WaitingError


class Operator:
    """The calls of a SuperLink's operator, on the loopback address.

    Args:
        superlink: host and port by which it is reached.
        authority: checks its certificate.

    Raises:
        WaitingError: with every call: the SuperLink does not answer now.
    """

    def __init__(self, superlink: str, authority: Path) -> None:
        own = (CliClientHttpInterceptor(), RuntimeVersionHttpInterceptor("flwr CLI"))
        self._control = ControlHttpClient.from_server_address(
            superlink, False, certificate_in(authority), interceptors=own
        )
        self._superlink = superlink

    def start(self, app: Path, config: Mapping[str, Any]) -> int:
        """Start a run of the app in a folder; Flower's number of it."""
        content = build_fab_from_disk(app)
        fab = Fab(hashlib.sha256(content).hexdigest(), content, {})
        request = StartRunRequest(
            fab=fab_to_proto(fab), override_config=user_config_to_proto(dict(config))
        )
        return int(self._asked(self._control.StartRun, request).run_id)

    def has_ended(self, run: int) -> bool:
        """Whether Flower has given a run up, or finished it."""
        found = self._asked(self._control.ListRuns, ListRunsRequest(run_id=run)).run_dict
        return all(one.status.status == "finished" for one in found.values())

    def stop(self, run: int) -> None:
        """Stop a run."""
        self._asked(self._control.StopRun, StopRunRequest(run_id=run))

    def nodes(self) -> dict[str, tuple[int, str]]:
        """Number and name of the registered nodes, by the fingerprint of their keys."""
        found = self._asked(self._control.ListNodes, ListNodesRequest()).nodes_info
        return {
            known_key(bytes(node.public_key)): (int(node.node_id), str(node.name))
            for node in found
            if node.status != "unregistered"
        }

    def register(self, public: str, name: str) -> None:
        """Let the node with this public key in."""
        loaded: Any = load_ssh_public_key(public.encode())
        key = public_key_to_bytes(loaded)
        self._asked(self._control.RegisterNode, RegisterNodeRequest(public_key=key, name=name))

    def unregister(self, node: int) -> None:
        """Let a node in no more."""
        self._asked(self._control.UnregisterNode, UnregisterNodeRequest(node_id=node))

    def _asked(self, call: Callable[[Any], Any], request: Any) -> Any:
        try:
            return call(request)
        except httpx.RequestError:
            raise WaitingError.because(f"the SuperLink at {self._superlink}") from None
        except httpx.HTTPError as error:
            response = getattr(error, "response", None)
            words = str(error if response is None else response.text)[:300]
            raise WaitingError.because(
                f"the SuperLink at {self._superlink}, which says: {words}"
            ) from None
