"""The left wing: intake, ledger, planning, scheduling, results."""
