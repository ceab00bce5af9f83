"""The demo: copies 336,776 flights while processes are killed, and counts lost and doubled records."""
