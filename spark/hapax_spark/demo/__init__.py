"""The demo: 336,776 flights, processes killed on the way, and a count of what was lost or doubled."""
