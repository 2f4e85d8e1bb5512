"""How Macs find the fleet, prove themselves and are let in."""
