"""The driver's machines: every decision about hosts, recoveries and what may be forgotten."""
