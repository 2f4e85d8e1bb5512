"""The status that a coordinator serves."""

from __future__ import annotations

from coordinator.client.fleet_client import FleetClient
from coordinator.client.whereabouts import Place
from coordinator.screens.snapshot import FleetSnapshot, snapshot_from_json
from fleet.errors import FleetError


class FleetStatus:
    """Snapshots of the fleet at a place; after a failure the next call begins anew, at every address."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._client: FleetClient | None = None

    def __call__(self) -> FleetSnapshot:
        """The fleet now; FleetError when it cannot be asked."""
        if self._client is None:
            self._client = FleetClient.reach(self._place)
        try:
            return snapshot_from_json(self._client.get("/fleet/status"))
        except FleetError:
            self.close()
            raise

    def close(self) -> None:
        """Lets go of the connection."""
        client, self._client = self._client, None
        if client is not None:
            client.__exit__()
