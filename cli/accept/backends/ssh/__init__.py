"""Run on hosts that this machine reaches over ssh."""
