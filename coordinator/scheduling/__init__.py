"""Which worker gets which rows. Pure: no clock, socket or random."""
